"""Errors of devices, counted by device and code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.executions import Devices
from otel_gpuflame.events.records import Event
from otel_gpuflame.profile.known_devices import KnownDevices

_MAX_FAULTS: Final = 1 << 10
"""Devices × codes that are told apart: more than a host has. Further ones are counted together."""
_OTHERS: Final = ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """One code of one device."""

    uuid: str
    """Empty where it is not known which device is at that bus id."""
    model: str
    bus_id: str
    code: int
    count: int
    message: str
    """Of the last one."""


class DeviceFaults:
    """Feed it every event; `faults` is what has been reported so far."""

    def __init__(self) -> None:
        self._devices = KnownDevices()
        self._faults: dict[tuple[str, int], DeviceFault] = {}

    def feed(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Devices):
            self._devices.add(event.devices)
        elif isinstance(event, DeviceErrors):
            for error in event.errors:
                self._add(error)

    def faults(self) -> tuple[DeviceFault, ...]:
        """In the order in which they first occurred."""
        return tuple(self._faults.values())

    def _add(self, error: DeviceError) -> None:
        key = (error.bus_id, error.code)
        if key not in self._faults and len(self._faults) >= _MAX_FAULTS:
            key = _OTHERS
        known = self._faults.get(key)
        device = None if key == _OTHERS else self._devices.get(error.device)
        self._faults[key] = DeviceFault(
            uuid=device.uuid if device else "",
            model=device.model if device else "",
            bus_id=key[0],
            code=key[1],
            count=1 + (known.count if known else 0),
            message=error.message,
        )
