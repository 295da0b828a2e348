"""Errors of devices that their driver reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceError:
    """NVIDIA's driver reported an Xid. Which process it was about, if any, only the message may say."""

    time_ns: int
    device: int
    """Index of `DeviceInfo`, of the whole device also where it is cut into MIG instances; `NO_DEVICE`: not known."""
    bus_id: str
    """PCI bus id as the kernel writes it: `0000:3b:00.0`."""
    code: int
    """What NVIDIA's list of Xid errors explains."""
    message: str


@dataclass(frozen=True, slots=True)
class DeviceErrors:
    """Errors in the order in which they were reported."""

    errors: tuple[DeviceError, ...]
