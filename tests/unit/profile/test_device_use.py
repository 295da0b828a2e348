"""What counters of devices add up to, and how it is shown."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from rich.console import Console

from otel_gpuflame.cli.device_table import print_devices
from otel_gpuflame.events.device_metrics import (
    DEVICE_METRIC,
    ClockReason,
    DeviceMetric,
    DeviceMetrics,
)
from otel_gpuflame.events.executions import DeviceInfo, Devices
from otel_gpuflame.profile.device_use import DeviceUse, DeviceUses

MS = 1_000_000
GIB = float(1 << 30)


def readings(*rows: tuple[int, float, int, DeviceMetric]) -> DeviceMetrics:
    """Readings as (interval, value, device, metric)."""
    return DeviceMetrics(np.array([(9, i, v, d, 0, m) for i, v, d, m in rows], DEVICE_METRIC))


def used(*events: Devices | DeviceMetrics) -> tuple[DeviceUse, ...]:
    """What these events add up to."""
    uses = DeviceUses()
    for event in events:
        uses.feed(event)
    return uses.uses()


H200 = Devices((DeviceInfo(index=0, uuid="GPU-01234567-89ab", model="NVIDIA H200"),))
BUSY = readings(
    (100 * MS, 1.0, 0, DeviceMetric.GRAPHICS_ACTIVE),
    (300 * MS, 0.2, 0, DeviceMetric.GRAPHICS_ACTIVE),
    (100 * MS, 3 * GIB, 0, DeviceMetric.PCIE_TRANSMIT),
    (0, 10 * GIB, 0, DeviceMetric.MEMORY_USED),
    (0, 8 * GIB, 0, DeviceMetric.MEMORY_USED),
    (0, 141 * GIB, 0, DeviceMetric.MEMORY_TOTAL),
    (0, float(ClockReason.GPU_IDLE | ClockReason.SW_POWER_CAP), 0, DeviceMetric.CLOCK_REASONS),
    (0, float(ClockReason.GPU_IDLE), 0, DeviceMetric.CLOCK_REASONS),
    (100 * MS, 0.9, 0, DeviceMetric.PROCESS_SM),
)


def test_shares_are_weighted_by_their_time() -> None:
    """Memory is the most that was used; idleness holds no clock down; what a process had is not the device's."""
    (use,) = used(H200, BUSY)
    assert use.device.model == "NVIDIA H200"
    assert use.means[DeviceMetric.GRAPHICS_ACTIVE] == pytest.approx(0.4)
    assert use.covered_ns[DeviceMetric.GRAPHICS_ACTIVE] == 400 * MS
    assert set(use.means) == {DeviceMetric.GRAPHICS_ACTIVE, DeviceMetric.PCIE_TRANSMIT}
    assert (use.memory_used, use.memory_total) == (10 * GIB, 141 * GIB)
    assert use.clock_limits == ((ClockReason.SW_POWER_CAP, 0.5),)


def test_odd_readings_are_left_out() -> None:
    """Metrics of later versions, values that are no numbers, no time at all; devices that nobody has named."""
    odd = readings(
        (MS, math.nan, 3, DeviceMetric.SM_ACTIVE),
        (0, 0.5, 3, DeviceMetric.SM_ACTIVE),
        (MS, 0.5, 3, DeviceMetric.DRAM_ACTIVE),
    )
    odd.rows["metric"][2] = 999
    (use,) = used(odd)
    assert (use.device.index, use.device.uuid, dict(use.means)) == (3, "", {})


def table(*events: Devices | DeviceMetrics, limit: int = 10) -> str:
    """The table."""
    text = io.StringIO()
    print_devices(Console(file=text, width=140, highlight=False), used(*events), limit)
    return text.getvalue()


def test_what_devices_said_is_shown() -> None:
    """Nothing where nothing was read; rates only where there are some."""
    assert table(H200) == ""
    text = table(H200, BUSY)
    for part in ("NVIDIA H200", "GPU-01234567", "40.0%", "10.0 GiB of 141 GiB", "3.00 GiB/s"):
        assert part in text
    assert "sw_power_cap 50%" in text
    assert "NVLink" not in text


def test_the_busiest_come_first_and_the_rest_is_counted() -> None:
    """A host may have many devices of which one was used."""
    metrics = readings(*((MS, 0.1 * n, n, DeviceMetric.GRAPHICS_ACTIVE) for n in range(4)))
    text = table(metrics, limit=2)
    assert text.index("30.0%") < text.index("20.0%")
    assert "10.0%" not in text
    assert "… 2 more" in text
