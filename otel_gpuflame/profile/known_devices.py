"""Devices by their numbers, a bounded number of them: those of processes without UUIDs come and go with these."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from otel_gpuflame.events.executions import DeviceInfo

_MAX_DEVICES: Final = 1 << 13
"""With UUIDs, and without: twice as many as a live source gives numbers to at a time."""


class KnownDevices:
    """Forgets those that nobody has asked for for the longest time. Without a UUID they replace none that have one."""

    def __init__(self) -> None:
        self._named: OrderedDict[int, DeviceInfo] = OrderedDict()
        self._others: OrderedDict[int, DeviceInfo] = OrderedDict()

    def add(self, devices: Iterable[DeviceInfo]) -> None:
        """From now on their numbers mean these."""
        for device in devices:
            known = self._named if device.uuid else self._others
            known[device.index] = device
            known.move_to_end(device.index)
            if len(known) > _MAX_DEVICES:
                known.popitem(last=False)

    def get(self, number: int) -> DeviceInfo | None:
        """What was said of it last; None: nothing, or it is forgotten."""
        for known in (self._named, self._others):
            if number in known:
                known.move_to_end(number)
                return known[number]
        return None
