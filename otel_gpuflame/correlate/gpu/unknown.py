"""Times in which not everything on a device was captured, so that nobody can say that it was idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.coverage import UNKNOWN, UnknownArray
from otel_gpuflame.correlate.gpu.keys import codes_of
from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.device_metrics import DeviceMetric, DeviceMetricArray
from otel_gpuflame.events.executions import ExecutionsEnd
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire_gpu import Incomplete

_AFTER_SUBMISSION_NS: Final = 1_000_000_000
"""So long after a process that is not captured gave a device something to do, the device may be at work for it."""
_MAX_INTERVALS: Final = 1 << 12
_PROCESS_ENDED: Final = "process_ended"
_CUT_OFF: Final = frozenset({_PROCESS_ENDED, Incomplete.NOT_FLUSHED.name.lower()})

Where: TypeAlias = ProcessKey | int | None
"""Devices that a process uses, or one device; None: all."""


@dataclass(slots=True)
class _Interval:
    where: Where
    leaf: Leaf
    start_ns: int
    end_ns: int
    by: ProcessKey | None
    """Whose submissions these were; None: of no process in particular."""


class Unknown:
    """Intervals by what they hold for."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=_MAX_INTERVALS)
        self._last: dict[tuple[Where, Leaf, ProcessKey | None], _Interval] = {}

    def add(
        self,
        start_ns: int,
        end_ns: int,
        leaf: Leaf,
        where: Where,
        by: ProcessKey | None = None,
    ) -> None:
        """Not all is known of this time."""
        last = self._last.get((where, leaf, by))
        if last is not None and last.start_ns <= start_ns <= last.end_ns:
            last.end_ns = max(last.end_ns, end_ns)
            return
        new = self._last[where, leaf, by] = _Interval(where, leaf, start_ns, end_ns, by)
        self._intervals.append(new)

    def submitted(self, process: ProcessKey, times_ns: NDArray[np.uint64]) -> None:
        """Times, at least one, at which a process that is not captured gave some device something to do."""
        times_ns = np.sort(times_ns)
        breaks = np.flatnonzero(np.diff(times_ns) > _AFTER_SUBMISSION_NS)
        firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(times_ns) - 1)
        for first_ns, last_ns in zip(
            times_ns[firsts].tolist(), times_ns[lasts].tolist(), strict=True
        ):
            until_ns = last_ns + _AFTER_SUBMISSION_NS
            self.add(first_ns, until_ns, Leaf.UNKNOWN_NOT_CAPTURED, None, process)

    def add_others(self, rows: DeviceMetricArray, captured: Set[int]) -> None:
        """Readings may show work of processes other than those `captured`.

        They say so only afterwards: it is taken to go on for as long as it had gone on.
        """
        for row in rows[(rows["metric"] == DeviceMetric.PROCESS_SM) & (rows["value"] > 0)]:
            if int(row["tgid"]) in captured:
                continue
            time_ns, interval_ns = int(row["time_ns"]), int(row["interval_ns"])
            since_ns, until_ns = max(time_ns - interval_ns, 0), time_ns + interval_ns
            self.add(since_ns, until_ns, Leaf.UNKNOWN_NOT_CAPTURED, int(row["device"]))

    def end(self, event: ExecutionsEnd, begin_ns: int, complete_ns: int, *, goes_on: bool) -> None:
        """A process is no longer captured: what is missing of its interval, and what comes after it if it `goes_on`.

        Whatever was cut off remains complete until `complete_ns`.
        """
        if event.incomplete:
            since_ns = complete_ns if event.incomplete in _CUT_OFF else begin_ns
            self.add(since_ns, event.time_ns, Leaf.UNKNOWN_INCOMPLETE, event.process)
        if goes_on and event.incomplete != _PROCESS_ENDED:
            self.add(event.time_ns, FOREVER, Leaf.UNKNOWN_NOT_CAPTURED, event.process)

    def begin(self, process: ProcessKey, time_ns: int) -> None:
        """It is captured from then on, although that was not known yet when its calls came.

        What it had launched before is over when the first execution begins that is known, on the same stream at least:
        until then nothing is said of the device.
        """
        self.go_on(process, time_ns)
        for each in self._intervals:
            if each.by == process:
                each.end_ns = min(each.end_ns, max(time_ns, each.start_ns))

    def go_on(self, process: ProcessKey, time_ns: int) -> None:
        """It is captured again, or has ended."""
        last = self._last.get((process, Leaf.UNKNOWN_NOT_CAPTURED, None))
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
            self._last = {(each.where, each.leaf, each.by): each for each in kept}


def add_submissions(unknown: Unknown, rows: CallArray) -> None:
    """Submissions among calls of processes that are not captured."""
    rows = rows.take(np.flatnonzero(IS_SUBMISSION[rows["kind"]]))
    if not len(rows):
        return
    process, some = codes_of(rows["tgid"], rows["process_start_ns"])
    starts_ns = rows["start_ns"]
    for number, first in enumerate(some.tolist()):
        key = ProcessKey(int(rows["tgid"][first]), int(rows["process_start_ns"][first]))
        unknown.submitted(key, starts_ns[process == number])
