"""Times in which not everything on a device was captured, so that nobody can say that it was idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from otel_gpuflame.correlate.gpu.coverage import UNKNOWN, UnknownArray
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.device_metrics import DeviceMetricArray
from otel_gpuflame.events.frames import ProcessKey

_AFTER_SUBMISSION_NS: Final = 1_000_000_000
"""So long after a process that is not captured gave a device something to do, the device may be at work for it."""
_MAX_INTERVALS: Final = 1 << 12

Where: TypeAlias = ProcessKey | int | None
"""Devices that a process uses, or one device; None: all."""


@dataclass(slots=True)
class _Interval:
    where: Where
    leaf: Leaf
    start_ns: int
    end_ns: int


class Unknown:
    """Intervals by what they hold for."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=_MAX_INTERVALS)
        self._last: dict[tuple[Where, Leaf], _Interval] = {}

    def add(self, start_ns: int, end_ns: int, leaf: Leaf, where: Where) -> None:
        """Not all is known of this time."""
        last = self._last.get((where, leaf))
        if last is not None and last.start_ns <= start_ns <= last.end_ns:
            last.end_ns = max(last.end_ns, end_ns)
            return
        new = self._last[where, leaf] = _Interval(where, leaf, start_ns, end_ns)
        self._intervals.append(new)

    def add_submissions(self, first_ns: int, last_ns: int) -> None:
        """A process that is not captured gave some device something to do."""
        until_ns = last_ns + _AFTER_SUBMISSION_NS
        self.add(first_ns, until_ns, Leaf.UNKNOWN_NOT_CAPTURED, None)

    def add_others(self, rows: DeviceMetricArray) -> None:
        """Readings that show work of processes that are not captured.

        They say so only afterwards: it is taken to go on for as long as it had gone on.
        """
        for row in rows:
            time_ns, interval_ns = int(row["time_ns"]), int(row["interval_ns"])
            since_ns, until_ns = max(time_ns - interval_ns, 0), time_ns + interval_ns
            self.add(since_ns, until_ns, Leaf.UNKNOWN_NOT_CAPTURED, int(row["device"]))

    def stop(self, process: ProcessKey, time_ns: int) -> None:
        """A process is no longer captured, and may go on to use its devices."""
        self.add(time_ns, FOREVER, Leaf.UNKNOWN_NOT_CAPTURED, process)

    def go_on(self, process: ProcessKey, time_ns: int) -> None:
        """It is captured again, or has ended."""
        last = self._last.get((process, Leaf.UNKNOWN_NOT_CAPTURED))
        if last is not None:
            last.end_ns = min(last.end_ns, time_ns)

    def on(self, device: int, users: Set[ProcessKey]) -> UnknownArray:
        """Intervals of one device, which these processes use."""
        rows = [
            (each.start_ns, each.end_ns, device, each.leaf)
            for each in self._intervals
            if each.where is None or each.where == device or each.where in users
        ]
        return np.array(rows, UNKNOWN)

    def forget(self, before_ns: int) -> None:
        """What ended before a time no longer matters."""
        kept = [each for each in self._intervals if each.end_ns > before_ns]
        if len(kept) < len(self._intervals):
            self._intervals = deque(kept, maxlen=_MAX_INTERVALS)
            self._last = {(each.where, each.leaf): each for each in kept}
