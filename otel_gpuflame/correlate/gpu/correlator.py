"""Both sides together: events in, the same events out, and what executions say about them.

The one stateful stage. It knows no clock, only event time, and what it says does not depend on how events are batched.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.backlog import Numbers
from otel_gpuflame.correlate.gpu.counts import JoinCounts
from otel_gpuflame.correlate.gpu.explain import Explainer
from otel_gpuflame.correlate.gpu.first_waits import FirstWaits, waits_inside
from otel_gpuflame.correlate.gpu.graph_nodes import GraphNodes
from otel_gpuflame.correlate.gpu.held_waits import HeldWaits
from otel_gpuflame.correlate.gpu.idleness import Begins
from otel_gpuflame.correlate.gpu.join import Join, Limits
from otel_gpuflame.correlate.gpu.match import Mask
from otel_gpuflame.correlate.gpu.processes import FOREVER, Processes, Tracked
from otel_gpuflame.correlate.gpu.recent import RecentCalls
from otel_gpuflame.correlate.gpu.seen import Seen
from otel_gpuflame.correlate.gpu.unknown import add_submissions
from otel_gpuflame.events.attributions import AttributionArray, Attributions, Leaf, StackPairs
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    Event,
    ProcessesEnded,
    SamplingWindow,
    Targets,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag, Kind

GRACE_NS: Final = 200_000_000
"""So far behind all watermarks things are decided. A copy that blocks is reported when it returns, which is after its
execution was: until then its execution has no launch."""
GIVE_UP_NS: Final = 2_000_000_000
"""So far behind the calls executions may be: a stopped program must not stop the profiles of the others."""
_LAST_READ_NS: Final = 1_000_000_000
"""So long after its end was known, records of a process may still be read."""
_STEP_NS: Final = 500_000_000
"""Deciding takes some 10 ms however little there is."""
_BUSY_STEP_NS: Final = 100_000_000
"""Where much is waiting: it should fit into the caches."""


class GpuCorrelator:
    """Feed it every event in order; it returns what goes on to the next stage.

    `nodes`: what nodes of graphs are taken for, which another stage knows.
    """

    def __init__(self, limits: Limits | None = None, nodes: GraphNodes | None = None) -> None:
        self._limits = limits or Limits()
        self._join = Join(limits)
        self._nodes = nodes or GraphNodes()
        self._seen = Seen()
        counts = self._join.counts.uncertain
        self._explainer = Explainer(self._join.history, counts, self._nodes, self._seen)
        self._processes = Processes()
        self._recent = RecentCalls()
        self._first_waits = FirstWaits()
        self._waits = HeldWaits()
        self._calls_ns: int | None = None
        self._settled_ns = 0
        self._told_ns = 0

    @property
    def counts(self) -> JoinCounts:
        """The books so far."""
        return self._join.counts

    def feed(self, event: Event) -> list[Event]:
        """Take in one event; what goes on, in order."""
        return self._take(event)

    @singledispatchmethod
    def _take(self, event: Event) -> list[Event]:
        return [event]

    def finish(self) -> list[Event]:
        """Decide all that is left with what is known."""
        if not self._processes.tracked:
            return []
        last_ns = [each.last_ns for each in self._processes.tracked.values()]
        events = self._settle(max(*last_ns, self._waits.last_ns(), self._calls_ns or 0))
        for each in tuple(self._processes.tracked.values()):
            events += self._leave(each)
        return events

    @_take.register
    def _(self, event: Calls) -> list[Event]:
        rows = event.rows
        if not self._processes.tracked:
            self._recent.add(rows)
            return [event]
        numbers = self._processes.numbers_of(rows)
        is_tracked = numbers >= 0
        if not is_tracked.all():
            self._note_others(rows.take(np.flatnonzero(~is_tracked)))
        if not is_tracked.any():
            return [event]
        self._remember(rows, numbers, is_tracked)
        held = waits_inside(rows, numbers, self._processes, self._first_waits)
        if not len(held):
            return [event, *self._make_room()]
        waits = rows.take(held)
        self._waits.add(waits, numbers.take(held))
        is_passed = np.ones(len(rows), np.bool_)
        is_passed[held] = False
        return [*_calls(rows.take(np.flatnonzero(is_passed))), *self._make_room()]

    def _note_others(self, rows: CallArray) -> None:
        """Calls of processes whose executions are not delivered: they may be soon, and meanwhile they use devices."""
        self._recent.add(rows)
        add_submissions(self._explainer.idleness.unknown, rows)

    def _remember(self, rows: CallArray, numbers: Numbers, is_tracked: Mask) -> None:
        """Keep what executions may belong to."""
        if not is_tracked.all():
            chosen = np.flatnonzero(is_tracked)
            rows, numbers = rows.take(chosen), numbers.take(chosen)
        self._explainer.add_calls(rows)
        is_call = rows["kind"] <= Kind.FREE
        if not is_call.all():
            chosen = np.flatnonzero(is_call)
            rows, numbers = rows.take(chosen), numbers.take(chosen)
        self._join.add_calls(rows, numbers)

    @_take.register
    def _(self, event: SamplingWindow) -> list[Event]:
        self._seen.note(event)
        return [event]

    @_take.register
    def _(self, event: Watermark) -> list[Event]:
        self._calls_ns = max(self._calls_ns or 0, event.time_ns)
        if self._processes.tracked:
            return self._advance()
        self._told_ns = max(self._told_ns, event.time_ns)
        return [event]

    @_take.register
    def _(self, event: Executions) -> list[Event]:
        rows = event.rows
        if not len(rows):
            return [event]
        # Some come without a begin, or after their end.
        for key in self._processes.unknown_among(rows):
            self._track(key, FOREVER, FOREVER, end_ns=0)
        numbers = self._processes.numbers_of(rows)
        if (numbers < 0).any():
            places = np.flatnonzero(numbers >= 0)
            self._join.counts.refuse(len(rows) - len(places))
            rows, numbers = rows.take(places), numbers.take(places)
        self._join.add_records(rows, numbers, self._calls_ns)
        latest_ns = FOREVER if self._calls_ns is None else self._calls_ns + GIVE_UP_NS
        self._processes.note_last(rows, numbers, latest_ns)
        return [event, *self._make_room()]

    def _track(
        self, process: ProcessKey, begin_ns: int, complete_ns: int, end_ns: int = FOREVER
    ) -> None:
        is_first, is_new = not self._processes.tracked, process not in self._processes.tracked
        tracked = self._processes.track(process, begin_ns, complete_ns)
        if tracked is None:
            return
        tracked.end_ns = end_ns
        tracked.is_partial = not self._seen.from_start(process)
        self._first_waits.forget(tracked.number)
        if is_first:
            # Nobody has looked at these yet: they may keep a device at work in the time that begins now.
            add_submissions(self._explainer.idleness.unknown, self._recent.rows())
        if is_new:
            before = self._recent.of(process)
            numbers = np.full(len(before), tracked.number, np.int32)
            self._remember(before, numbers, np.ones(len(before), np.bool_))

    @_take.register
    def _(self, event: ExecutionsBegin) -> list[Event]:
        events: list[Event] = []
        former = self._processes.tracked.get(event.process)
        if former is not None and former.is_partial and former.end_ns != FOREVER:
            # Another window, soon after: all of the one before is here, and it has idle time of its own.
            events = self._settle(max(self._settled_ns, former.end_ns, former.last_ns))
            events += self._leave(former)
        self._track(event.process, event.time_ns, event.time_ns)
        self._explainer.idleness.unknown.begin(event.process, event.time_ns)
        return [*events, event]

    @_take.register
    def _(self, event: ExecutionWatermark) -> list[Event]:
        tracked = self._processes.tracked.get(event.process)
        if tracked is None:
            return [event]
        tracked.complete_ns = max(tracked.complete_ns, event.time_ns)
        return [event, *self._advance()]

    @_take.register
    def _(self, event: ExecutionsEnd) -> list[Event]:
        tracked = self._processes.tracked.get(event.process)
        if tracked is None:
            return [event]
        unknown = self._explainer.idleness.unknown
        unknown.end(event, tracked.begin_ns, tracked.complete_ns, goes_on=not tracked.has_ended)
        tracked.end_ns, tracked.complete_ns = event.time_ns, FOREVER
        return [event, *self._advance()]

    @_take.register
    def _(self, event: DeviceMetrics) -> list[Event]:
        if self._processes.tracked:
            self._explainer.idleness.unknown.add_others(event.rows, self._processes.pids())
        return [event]

    @_take.register
    def _(self, event: ProcessesEnded) -> list[Event]:
        for process in event.processes:
            self._explainer.idleness.unknown.go_on(process, self._calls_ns or 0)
            tracked = self._processes.tracked.get(process)
            if tracked is not None:
                tracked.has_ended, tracked.complete_ns = True, FOREVER
                tracked.end_ns = min(tracked.end_ns, (self._calls_ns or 0) + _LAST_READ_NS)
        return [event]

    @_take.register
    def _(self, event: Targets) -> list[Event]:
        # A process that has ended, and is described anew, runs another program: what is held was the former's.
        replaced = self._processes.ended_among(target.process for target in event.targets)
        if not replaced:
            return [event]
        last_ns = [max(t.last_ns, self._waits.last_ns(t.number)) for t in replaced]
        events = self._settle(max(self._settled_ns, *last_ns))
        for tracked in replaced:
            events += self._leave(tracked)
        return [*events, event]

    def _advance(self) -> list[Event]:
        """Decide what all watermarks say is complete, and what was waited for long enough."""
        if self._calls_ns is None:
            return self._make_room()
        tracked = self._processes.tracked.values()
        complete_ns = min((each.complete_ns for each in tracked), default=FOREVER)
        until_ns = max(min(self._calls_ns, complete_ns), self._calls_ns - GIVE_UP_NS) - GRACE_NS
        step_ns = _BUSY_STEP_NS if self._join.is_busy else _STEP_NS
        if until_ns - self._settled_ns < step_ns and not self._is_over(until_ns):
            return self._make_room()
        self._give_up(until_ns)
        events = self._settle(until_ns)
        for each in tuple(tracked):
            if each.is_over(until_ns):
                events += self._leave(each)
        if not self._processes.tracked:
            events += self._settle(self._calls_ns)
            events += self._watermark(self._calls_ns)
            # Between two windows nothing looks back.
            self._join.history.clear()
        return events

    def _give_up(self, until_ns: int) -> None:
        """Processes whose executions until then are not here: whether their devices were idle is not known."""
        for each in self._processes.tracked.values():
            if each.complete_ns < until_ns:
                begin_ns = max(each.complete_ns, self._settled_ns)
                self._explainer.idleness.unknown.add(
                    begin_ns, until_ns, Leaf.UNKNOWN_INCOMPLETE, each.key
                )
                self._waits.give_up(until_ns)

    def _is_over(self, until_ns: int) -> bool:
        """Whether no process goes on: then nothing needs to be held back."""
        return all(each.is_over(until_ns) for each in self._processes.tracked.values())

    def _make_room(self) -> list[Event]:
        """Decide the oldest where too much is waiting."""
        until_ns = self._join.overfull_until_ns()
        if until_ns is None:
            until_ns = self._waits.overfull_until_ns(self._limits.launches)
        if until_ns is None:
            return []
        return self._settle(until_ns, is_forced=True)

    def _settle(self, until_ns: int, *, is_forced: bool = False) -> list[Event]:
        cuts_ns = self._join.cuts_ns(until_ns)
        return [e for cut in cuts_ns for e in self._settle_once(cut, is_forced=is_forced)]

    def _settle_once(self, until_ns: int, *, is_forced: bool) -> list[Event]:
        complete_ns = self._processes.complete_ns()
        settled = self._join.settle(until_ns, complete_ns, is_forced=is_forced)
        waits, untold = self._waits.due(until_ns, complete_ns)
        self._settled_ns = max(self._settled_ns, until_ns)
        told = self._explainer.explain(settled, waits, Begins(*self._processes.begins()))
        told.explained["flags"] |= np.uint8(CallFlag.ATTRIBUTED)
        events = [e for rows in (told.explained, told.others, untold) for e in _calls(rows)]
        pairs = self._nodes.take_pairs()
        if pairs:
            events.append(StackPairs(pairs))
        events += _attributions(told.rows)
        return events + self._watermark(min(until_ns, self._calls_ns or 0))

    def _watermark(self, time_ns: int) -> list[Event]:
        if time_ns <= self._told_ns or self._calls_ns is None:
            return []
        self._told_ns = time_ns
        return [Watermark(time_ns)]

    def _leave(self, tracked: Tracked) -> list[Event]:
        """Forget a process, and tell what is left to say of it."""
        end_ns = min(tracked.end_ns, self._settled_ns)
        told = self._explainer.leave(tracked.key, end_ns, self._told_ns)
        self._join.drop(tracked.number)
        self._first_waits.forget(tracked.number)
        self._processes.untrack(tracked.key)
        return _attributions(told)


def _attributions(parts: list[AttributionArray]) -> list[Event]:
    # One event each: putting them together would copy 100 bytes for each row.
    return [Attributions(rows) for rows in parts if len(rows)]


def _calls(rows: CallArray) -> list[Event]:
    return [Calls(rows)] if len(rows) else []
