"""Which sampling window executions belong to, and how much of it the injected library has recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.events.attributions import AttributionArray, Measure, NoLaunch
from otel_gpuflame.events.executions import ExecutionArray, ExecutionsBegin, ExecutionsEnd
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import SamplingWindow
from otel_gpuflame.profile.linked_spans import LinkedSpans
from otel_gpuflame.profile.strata import PPB
from otel_gpuflame.profile.windows import Sums

_NEVER: Final = 1 << 62
_AFTER_NS: Final = 3_000_000_000
"""So long after the last execution of a stratum all has been told: the correlation waits 2 s for stopped processes,
and idle time is told when the last process of a device has left."""
_PATIENCE_NS: Final = 30_000_000_000
"""A stopped program does not say that its window is over: so long after the stratum it is left out."""
OPENING_NS: Final = 100_000_000
"""A window of the library that begins later than so long after ours was not late: there was no library before. To open
takes 2 to 13 ms."""
_ENTERED_NS: Final = 100_000_000
"""So long before the library began, a launch that it recorded may have been entered."""
_INCOMPLETE: Final = "incomplete_window"
_OUTSIDE: Final = "outside_window"
LEFT_OUT: Final = (_INCOMPLETE, _OUTSIDE)
"""Why executions that were attributed are in no profile."""


@dataclass(slots=True)
class Interval:
    """A time in which all executions of a process are known, and what they said. `window` None: it lies in none."""

    process: ProcessKey
    begin_ns: int
    window: SamplingWindow | None = None
    end_ns: int = _NEVER
    last_ns: int = 0
    """End of the last execution."""
    incomplete: str = ""
    executions: int = 0
    attributions: Sums = field(default_factory=Sums)
    kernels: Sums = field(default_factory=Sums)
    spans: LinkedSpans = field(default_factory=LinkedSpans)
    is_closed: bool = False
    """Nothing can be added: what it said has been told, or left out."""

    @property
    def is_exact(self) -> bool:
        """Whether what it says counts as it is."""
        return self.window is not None and self.window.probability_ppb == PPB

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing in it."""
        return self.end_ns != _NEVER and not self.incomplete

    @property
    def over_ns(self) -> int:
        """When all of it has been told."""
        return max(self.end_ns, self.last_ns) + _AFTER_NS


@dataclass(slots=True)
class ExecutionStratum:
    """One sampling window, with the intervals that lie in it."""

    window: SamplingWindow
    number: int
    intervals: list[Interval] = field(default_factory=list)
    nobodys: Sums = field(default_factory=Sums)
    """Attributions that are of no process: times in which it is not known what a device did."""
    launches: Groups | None = None
    """Calls of the same window, as they were seen (groups of `call_columns`)."""

    @property
    def is_whole(self) -> bool:
        """Captured all the time."""
        return self.window.probability_ppb == PPB

    @property
    def over_ns(self) -> int:
        """When all of it has been told, or is not waited for any longer."""
        end_ns = self.window.stratum_end_ns
        latest_ns = max((each.over_ns for each in self.intervals), default=end_ns)
        return min(max(end_ns, latest_ns), end_ns + _PATIENCE_NS)

    def complete(self) -> dict[ProcessKey, list[Interval]]:
        """Intervals by process, in order; of processes of which some are complete, all."""
        found: dict[ProcessKey, list[Interval]] = {}
        for each in sorted(self.intervals, key=lambda i: i.begin_ns):
            found.setdefault(each.process, []).append(each)
        return {key: some for key, some in found.items() if any(i.is_complete for i in some)}


class Assigned(NamedTuple):
    """Attributions that count as they are, and those by what they belong to."""

    exact: AttributionArray
    inside: list[tuple[Interval, AttributionArray]]
    nobodys: list[tuple[ExecutionStratum, AttributionArray]]


class ExecutionStrata:
    """Sampling windows until all of what executions said in them has been told."""

    def __init__(self) -> None:
        self._strata: list[ExecutionStratum] = []
        self._opened = 0
        self._intervals: dict[ProcessKey, list[Interval]] = {}
        self.left_out: Counter[str] = Counter()
        """Executions by reason."""

    @property
    def held(self) -> int:
        """Executions that wait for the end of their stratum."""
        return sum(each.executions for each in self._all() if not each.is_closed)

    @property
    def oldest(self) -> int:
        """The first stratum of which not all has been told, or the next one; counted from 1."""
        open_ones = (each.number for each in self._strata if not each.is_whole)
        return min(open_ones, default=self._opened + 1)

    def open(self, window: SamplingWindow) -> None:
        """Begin a stratum."""
        self._opened += 1
        stratum = ExecutionStratum(window, self._opened)
        self._strata.append(stratum)
        # One that is captured as a whole may be announced when it has begun.
        for each in self._all():
            if each.window is None:
                _enter(each, stratum)

    def begin(self, event: ExecutionsBegin) -> None:
        """From then on all executions of a process are known."""
        interval = Interval(event.process, event.time_ns)
        self._intervals.setdefault(event.process, []).append(interval)
        for stratum in self._strata:
            if interval.window is None:
                _enter(interval, stratum)

    def end(self, event: ExecutionsEnd) -> None:
        """Until then."""
        for interval in self._intervals.get(event.process, ())[-1:]:
            if interval.end_ns == _NEVER:
                interval.end_ns, interval.incomplete = event.time_ns, event.incomplete

    def note(self, rows: ExecutionArray) -> Iterator[tuple[Interval | None, ExecutionArray]]:
        """Executions by the interval that they are delivered in, None: they count as they are."""
        rest = np.ones(len(rows), np.bool_)
        for process, intervals in self._intervals.items():
            latest = intervals[-1]
            mine = _of(process, rows) & rest
            if not mine.any():
                continue
            latest.last_ns = max(latest.last_ns, int(rows["end_ns"][mine].max()))
            if not latest.is_exact:
                rest &= ~mine
                yield latest, rows.take(np.flatnonzero(mine))
        if rest.any():
            yield None, rows.take(np.flatnonzero(rest))

    def assign(self, rows: AttributionArray) -> Assigned:
        """Sort attributions into what they belong to; those that lie outside of all windows are counted."""
        if self._is_simple():
            return Assigned(rows, [], [])
        exact = rows["sampled_ns"] == 0
        rest = ~exact
        inside: list[tuple[Interval, AttributionArray]] = []
        for process, intervals in self._intervals.items():
            places = np.flatnonzero(_of(process, rows) & rest)
            if not len(places):
                continue
            chosen = _choose(rows.take(places), intervals)
            for number, interval in enumerate(intervals):
                some = places[chosen == number]
                if interval.is_exact:
                    exact[some] = True
                    rest[some] = False
                elif interval.window is not None and not interval.is_closed and len(some):
                    rest[some] = False
                    inside.append((interval, rows.take(some)))
        nobodys = list(self._nobodys(rows, rest, exact))
        self._leave_out(rows["measure"][rest])
        for interval, some in inside:
            interval.executions += int(np.count_nonzero(some["measure"] == Measure.GPU_TIME))
        return Assigned(rows.take(np.flatnonzero(exact)), inside, nobodys)

    def stratum_of(self, window: SamplingWindow) -> ExecutionStratum | None:
        """The stratum of a window, while it is open."""
        return next((each for each in self._strata if each.window == window), None)

    def tell_until(self, time_ns: int) -> list[ExecutionStratum]:
        """Remove and return the scaled strata of which all has been told by `time_ns`, oldest first."""
        over = [each for each in self._strata if each.over_ns <= time_ns]
        self._strata = [each for each in self._strata if each.over_ns > time_ns]
        told = [each for each in over if not each.is_whole]
        for interval in (each for stratum in told for each in stratum.intervals):
            interval.is_closed = True
            if not interval.is_complete:
                self.left_out[_INCOMPLETE] += interval.executions
        self._forget(time_ns)
        return told

    def _forget(self, time_ns: int) -> None:
        for process, intervals in tuple(self._intervals.items()):
            kept = [
                each
                for each in intervals
                if each.over_ns > time_ns or not (each.is_closed or _is_loose(each))
            ]
            if kept:
                self._intervals[process] = kept
            else:
                del self._intervals[process]

    def _all(self) -> Iterable[Interval]:
        return (each for intervals in self._intervals.values() for each in intervals)

    def _is_simple(self) -> bool:
        """Whether everything counts as it is."""
        return all(stratum.is_whole for stratum in self._strata) and all(
            each.is_exact for each in self._all()
        )

    def _nobodys(
        self, rows: AttributionArray, rest: NDArray[np.bool_], exact: NDArray[np.bool_]
    ) -> Iterator[tuple[ExecutionStratum, AttributionArray]]:
        nobody = rest & _of(ProcessKey(0, 0), rows) & (rows["measure"] == Measure.GPU_IDLE)
        at_ns = rows["sampled_ns"]
        for stratum in self._strata:
            # Between the end of an interval and that of the window nothing is recorded any more.
            mine = np.zeros(len(rows), np.bool_)
            for each in stratum.intervals:
                mine |= nobody & (at_ns >= each.begin_ns) & (at_ns < each.end_ns)
            rest &= ~mine
            if stratum.is_whole:
                exact |= mine
            elif mine.any():
                yield stratum, rows.take(np.flatnonzero(mine))

    def _leave_out(self, measures: NDArray[np.uint8]) -> None:
        executions = int(np.count_nonzero(measures == Measure.GPU_TIME))
        if executions:
            self.left_out[_OUTSIDE] += executions


def covered_share(window: SamplingWindow, intervals: list[Interval], until_ns: int) -> float:
    """Which share of a sampling window, or of its part before `until_ns`, the intervals of one process cover.

    What lies before the first and after the last one only counts as missed where the process was there: to open and to
    close takes milliseconds. Otherwise it had not begun, or has ended, and nothing was missed.
    """
    length_ns = min(window.close_ns, until_ns) - window.open_ns
    if length_ns <= 0:
        return 0.0
    first_ns, last_ns = intervals[0].begin_ns, intervals[-1].end_ns
    late_ns = max(first_ns - window.open_ns, 0)
    early_ns = max(window.open_ns + length_ns - last_ns, 0)
    missed_ns = sum(each for each in (late_ns, early_ns) if each <= OPENING_NS)
    covered_ns = sum(each.end_ns - each.begin_ns for each in intervals if each.is_complete)
    missed_ns += last_ns - first_ns - covered_ns
    return max(length_ns - missed_ns, 0) / length_ns


def _enter(interval: Interval, stratum: ExecutionStratum) -> None:
    """Put an interval into the stratum, if its window covers the begin."""
    window = stratum.window
    if window.open_ns <= interval.begin_ns <= window.close_ns:
        interval.window = window
        stratum.intervals.append(interval)


def _is_loose(interval: Interval) -> bool:
    """Whether no stratum waits for it."""
    return interval.is_exact or interval.window is None


def _of(process: ProcessKey, rows: NDArray[np.void]) -> NDArray[np.bool_]:
    mine: NDArray[np.bool_] = rows["tgid"] == process.tgid
    if mine.any():
        mine &= rows["process_start_ns"] == process.start_ns
    return mine


def _choose(rows: AttributionArray, intervals: list[Interval]) -> NDArray[np.intp]:
    """(n,) the interval that each row of one process is of; -1: of none.

    Launches may begin a little before the interval in which they are recorded, and executions of unknown launches may
    begin after it. Idle time is where it is.
    """
    at_ns = rows["sampled_ns"].astype(np.int64)
    begins = np.array([each.begin_ns for each in intervals], np.int64)
    ends = np.array([each.end_ns for each in intervals], np.int64)
    last_begun = np.searchsorted(begins, at_ns, side="right") - 1
    not_over = np.minimum(np.searchsorted(ends, at_ns), len(intervals) - 1)
    is_idle = rows["measure"] == Measure.GPU_IDLE
    has_launch = (rows["no_launch"] == NoLaunch.NONE) & ~is_idle
    chosen = np.where(has_launch, not_over, last_begun)
    chosen = np.where(is_idle, chosen, np.maximum(chosen, 0))
    is_outside = is_idle & ((chosen < 0) | (at_ns >= ends[chosen]))
    is_outside |= has_launch & (at_ns < begins[chosen] - _ENTERED_NS)
    return np.where(is_outside, -1, chosen)
