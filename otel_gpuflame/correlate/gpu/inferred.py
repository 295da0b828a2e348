"""Launches that CUPTI did not record, found by order (`segments`), as the records that it would have made.

A stage before the correlator: events go through as they are, and records of launches are put between them in time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import singledispatchmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.cuts import Cut, begins, cuts_of, drop_before
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.correlate.gpu.recent import RecentCalls
from otel_gpuflame.correlate.gpu.seen import Seen
from otel_gpuflame.correlate.gpu.signatures import KIND_OF, Signatures
from otel_gpuflame.correlate.gpu.stretch import Stretch
from otel_gpuflame.correlate.gpu.undecided import IDS, Undecided, parts
from otel_gpuflame.events import apis
from otel_gpuflame.events.executions import (
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    Calls,
    Event,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Watermark,
)
from otel_gpuflame.events.wire import Kind, Outcome
from otel_gpuflame.events.wire_gpu import GpuKind

KERNELS_MISSING: Final = "kernels_missing"
"""Seen once in six processes on an H200, where capture began while the program created its context: CUPTI recorded
copies and synchronisations, not a single kernel, and said that nothing was lost."""
_MANY: Final = 16
"""Launches of kernels, of which one at least should have been executed; a few may all be captured into a graph."""
MAX_WAITING: Final = 1 << 20
"""Rows of one sort of a process that wait; with more, all are let go, and pairing begins anew."""
_STEP_NS: Final = 100_000_000
"""Half of what the correlator stays behind: its executions have their launches by then."""
_LOST: Final = frozenset(
    outcome.name.lower()
    for outcome in Outcome
    if outcome not in (Outcome.SEEN, Outcome.SENT, Outcome.NESTED)
)
_LAUNCHES: Final = frozenset(kind.name.lower() for kind in apis.SUBMISSIONS)


class InferredLaunches:
    """Feed it every event in order; it returns them, with records of launches that lack one before each watermark."""

    def __init__(self) -> None:
        self._processes: dict[ProcessKey, Undecided] = {}
        self._recent = RecentCalls()
        self._seen = Seen()
        self._signatures = Signatures()
        self._calls_ns = 0
        self._lost = 0
        self.counts: Counter[str] = Counter()
        """`inferred` launches, those `without_execution`; executions that were `ambiguous`; `evicted` rows."""

    def feed(self, event: Event) -> list[Event]:
        """Take in one event; what goes on, in order."""
        return self._take(event)

    def finish(self) -> list[Event]:
        """Pair what is left."""
        events: list[Event] = []
        for key, process in self._processes.items():
            events += self._close(key, process)
        self._processes.clear()
        return events

    @singledispatchmethod
    def _take(self, event: Event) -> list[Event]:
        return [event]

    @_take.register
    def _(self, event: Names) -> list[Event]:
        self._signatures.learn(event)
        return [event]

    @_take.register
    def _(self, event: Calls) -> list[Event]:
        self._recent.add(event.rows)
        if self._processes:
            rows = event.rows.take(np.flatnonzero(event.rows["kind"] <= Kind.FREE))
            for key, process in self._processes.items():
                process.add_calls(_of(key, rows))
        return [event]

    @_take.register
    def _(self, event: Executions) -> list[Event]:
        for key, process in self._processes.items():
            rows = _of(key, event.rows)
            kinds = rows["kind"]
            process.kernels += int(np.count_nonzero(kinds == GpuKind.KERNEL))
            process.recorded += parts(rows, kinds == GpuKind.API)
            process.executions += parts(rows, KIND_OF[kinds] != 0)
            process.synchronisations += parts(rows, kinds == GpuKind.SYNC)
        return [event]

    @_take.register
    def _(self, event: ExecutionsBegin) -> list[Event]:
        former = self._processes.pop(event.process, None)
        events = [] if former is None else self._close(event.process, former)
        process = self._processes[event.process] = Undecided(event.time_ns, event.time_ns)
        before = self._recent.of(event.process)
        before = before.take(np.flatnonzero(before["kind"] <= Kind.FREE))
        is_after = before["start_ns"] >= event.time_ns
        process.may_begin = (
            former is None and bool(is_after.all()) and self._seen.from_start(event.process)
        )
        process.add_calls(before.take(np.flatnonzero(is_after)))
        return [*events, event]

    @_take.register
    def _(self, event: Watermark) -> list[Event]:
        self._calls_ns = max(self._calls_ns, event.time_ns)
        return [*self._infer_due(), event]

    @_take.register
    def _(self, event: SamplingWindow) -> list[Event]:
        self._seen.note(event)
        return [event]

    @_take.register
    def _(self, event: ExecutionWatermark) -> list[Event]:
        process = self._processes.get(event.process)
        if process is not None:
            process.complete_ns = max(process.complete_ns, event.time_ns)
        return [*self._infer_due(), event]

    @_take.register
    def _(self, event: ExecutionsEnd) -> list[Event]:
        process = self._processes.get(event.process)
        if process is not None:
            # Calls before the end may still come.
            process.end_ns, process.complete_ns = event.time_ns, FOREVER
            launches = process.launches - process.launches_after(event.time_ns)
            if launches >= _MANY and not process.kernels and not event.incomplete:
                return [replace(event, incomplete=KERNELS_MISSING)]
        return [event]

    @_take.register
    def _(self, event: SourceCounters) -> list[Event]:
        lost = sum(c.count for c in event.counts if c.kind in _LAUNCHES and c.outcome in _LOST)
        if lost > self._lost:
            self._lost = lost
            for process in self._processes.values():
                process.is_lossy = True
        return [event]

    @_take.register
    def _(self, event: ProcessesEnded) -> list[Event]:
        for key in set(event.processes) & self._processes.keys():
            self._processes[key].has_ended = True
        self._signatures.forget(set(event.processes) - self._processes.keys())
        return [event]

    def _infer_due(self) -> list[Event]:
        events: list[Event] = []
        for key, process in self._processes.items():
            until_ns = min(process.complete_ns, self._calls_ns, process.end_ns)
            if until_ns - process.done_ns >= _STEP_NS:
                process.done_ns = until_ns
                events += self._infer(key, process, until_ns, is_last=False)
            self._bound(process)
        over = [k for k, p in self._processes.items() if p.end_ns + _STEP_NS <= self._calls_ns]
        for key in over:
            process = self._processes.pop(key)
            events += self._close(key, process)
            if process.has_ended:
                self._signatures.forget({key})
        return events

    def _close(self, key: ProcessKey, process: Undecided) -> list[Event]:
        return self._infer(key, process, process.end_ns, is_last=True)

    def _infer(
        self, key: ProcessKey, process: Undecided, until_ns: int, *, is_last: bool
    ) -> list[Event]:
        """Records of launches before `until_ns`, of which all executions are there."""
        cuts = cuts_of(process, until_ns)
        if not process.is_anchored and not begins(process, until_ns):
            if not cuts:
                return []
            self.counts["ambiguous"] += drop_before(process, cuts[0])
            process.is_anchored, process.is_lossy = True, False
            cuts = cuts[1:]
        stretch = Stretch(key, process, until_ns, self._signatures, self.counts)
        for cut in cuts:
            stretch.close_at(cut)
            process.is_lossy = False
        if is_last:
            stretch.close_at(Cut(until_ns, IDS))
        elif not process.is_lossy:
            stretch.close_if_equal()
        stretch.keep_the_rest()
        return [Executions(rows) for rows in stretch.found if len(rows)]

    def _bound(self, process: Undecided) -> None:
        waiting = process.waiting()
        if max(waiting.values()) > MAX_WAITING:
            self.counts["evicted"] += sum(waiting.values())
            process.drop_all()


def _of(key: ProcessKey, rows: NDArray[np.void]) -> NDArray[np.void]:
    is_of = (rows["tgid"] == key.tgid) & (rows["process_start_ns"] == key.start_ns)
    return rows if is_of.all() else rows.take(np.flatnonzero(is_of))
