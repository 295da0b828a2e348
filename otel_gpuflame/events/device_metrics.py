"""What a device's own counters say: how busy it was, and what held it back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

DeviceMetricArray: TypeAlias = NDArray[np.void]
"""Structured array of `DEVICE_METRIC`."""


class DeviceMetric(IntEnum):
    """What is measured. Numbers are part of the capture format: never reused, new ones at the end.

    Shares are from 0 to 1, of the interval that ends at the row's time.
    """

    GRAPHICS_ACTIVE = 1
    """Share of the time in which any compute or graphics work was on the device."""
    SM_ACTIVE = 2
    """Share of the multiprocessors that had work, over time."""
    SM_OCCUPANCY = 3
    """Active warps, as a share of what the multiprocessors can hold."""
    TENSOR_ACTIVE = 4
    DRAM_ACTIVE = 5
    """Share of the memory's bandwidth that was used."""
    PCIE_TRANSMIT = 6
    """Bytes a second, from the device."""
    PCIE_RECEIVE = 7
    NVLINK_TRANSMIT = 8
    NVLINK_RECEIVE = 9
    MEMORY_USED = 10
    """Bytes, at the row's time."""
    MEMORY_TOTAL = 11
    CLOCK_REASONS = 12
    """Bits of `ClockReason`, at the row's time."""
    PROCESS_SM = 13
    """Share of the time in which work of process `tgid` was on the device."""


class ClockReason(IntEnum):
    """Why clocks are below what they could be: bits of NVML's nvmlClocksEventReasons."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCK = 0x100


DEVICE_METRIC: Final[np.dtype[Any]] = np.dtype(
    [
        ("time_ns", "<u8"),
        ("interval_ns", "<u8"),
        ("value", "<f8"),
        ("device", "<u4"),
        ("tgid", "<u4"),
        ("metric", "<u2"),
    ],
    align=True,
)
"""`interval_ns` 0: at that moment. `device`: index of `DeviceInfo`. `tgid`: 0 but for `PROCESS_SM`."""


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """Readings in the order in which they were taken."""

    rows: DeviceMetricArray
