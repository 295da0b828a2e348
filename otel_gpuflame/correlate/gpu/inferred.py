"""Launches that CUPTI did not record, found by order (`align`), as the records that it would have made.

A stage before the correlator: events go through as they are, and records of launches are put between them in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.align import Sequence, align
from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.correlate.gpu.recent import RecentCalls
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import (
    EXECUTION,
    ExecutionArray,
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
    Names,
    ProcessesEnded,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind

KERNELS_MISSING: Final = "kernels_missing"
"""Seen once in six processes on an H200, where capture began while the program created its context: CUPTI recorded
copies and synchronisations, not a single kernel, and said that nothing was lost."""
_MANY: Final = 16
"""Launches of kernels, of which one at least should have been executed; a few may all be captured into a graph."""
MAX_WAITING: Final = 1 << 20
"""Launches, and executions, of a process that wait for each other; older ones are let go."""
_STEP_NS: Final = 100_000_000
"""Half of what the correlator stays behind: its executions have their launches by then."""
_GIVE_UP_NS: Final = 2_000_000_000
"""So far behind the calls executions may be."""
_FOREVER: Final = 1 << 62
_KIND_SHIFT: Final = np.uint64(56)
_WHICH: Final = np.uint64((1 << 56) - 1)
_KIND_OF: Final = np.zeros(256, np.uint64)
_KIND_OF[[GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET]] = [Kind.LAUNCH, Kind.COPY, Kind.SET]
_HALF: Final = 1 << 31
_CONTEXT_NS: Final = 10_000_000
"""Creating a context takes longer: 110 to 160 ms on an H200."""


@dataclass(slots=True)
class _Process:
    """What is known of one process and not decided yet."""

    begin_ns: int
    complete_ns: int
    """All executions of launches before it are here."""
    done_ns: int = 0
    calls: list[CallArray] = field(default_factory=list)
    executions: list[ExecutionArray] = field(default_factory=list)
    recorded: list[NDArray[np.uint32]] = field(default_factory=list)
    """Ids of launches that CUPTI recorded itself."""
    left: CallArray = field(default_factory=lambda: np.empty(0, wire.CALL))
    """Launches of earlier rounds, in the order in which they are to be paired."""
    is_anchored: bool = False
    """Both sides begin with the same launch: until then, what repeats itself could be paired a turn too early."""
    waits: list[CallArray] = field(default_factory=list)
    synchronisations: list[ExecutionArray] = field(default_factory=list)
    """Of which one will be the anchor."""
    may_begin: bool = False
    """The program called nothing before `begin_ns`: if it then takes its time, it was creating its context."""
    end_ns: int = _FOREVER
    """Executions of later launches are not delivered."""
    launches: int = 0
    kernels: int = 0
    has_ended: bool = False


class InferredLaunches:
    """Feed it every event in order; it returns them, with records of launches that lack one before each watermark."""

    def __init__(self) -> None:
        self._processes: dict[ProcessKey, _Process] = {}
        self._recent = RecentCalls()
        self._names: dict[tuple[ProcessKey, int], int] = {}
        self._name_ids: dict[str, int] = {}
        self._calls_ns = 0
        self.counts: Counter[str] = Counter()
        """`inferred` launches, those `without_execution`; executions that were `unplaced`; `evicted` rows."""

    def feed(self, event: Event) -> list[Event]:
        """Take in one event; what goes on, in order."""
        return self._take(event)

    def finish(self) -> list[Event]:
        """Pair what is left."""
        found = [
            self._infer(key, process, _FOREVER, is_last=True)
            for key, process in self._processes.items()
        ]
        self._processes.clear()
        return _events(found)

    @singledispatchmethod
    def _take(self, event: Event) -> list[Event]:
        return [event]

    @_take.register
    def _(self, event: Names) -> list[Event]:
        # Both sides name kernels: the program by function handles, CUPTI by text.
        for name in event.names:
            identity = self._name_ids.setdefault(name.name, len(self._name_ids) + 1)
            self._names[name.process, name.handle] = identity
        return [event]

    @_take.register
    def _(self, event: Calls) -> list[Event]:
        if not self._processes:
            self._recent.add(event.rows)
            return [event]
        rows = event.rows.take(np.flatnonzero(event.rows["kind"] <= Kind.FREE))
        for key, process in self._processes.items():
            _add_calls(process, _of(key, rows))
        return [event]

    @_take.register
    def _(self, event: Executions) -> list[Event]:
        for key, process in self._processes.items():
            rows = _of(key, event.rows)
            kinds = rows["kind"]
            process.kernels += int(np.count_nonzero(kinds == GpuKind.KERNEL))
            process.recorded.append(rows["correlation_id"][kinds == GpuKind.API])
            process.executions += _parts(rows.take(np.flatnonzero(_KIND_OF[kinds] != 0)))
            if not process.is_anchored:
                process.synchronisations += _parts(rows.take(np.flatnonzero(kinds == GpuKind.SYNC)))
        return [event]

    @_take.register
    def _(self, event: ExecutionsBegin) -> list[Event]:
        former = self._processes.pop(event.process, None)
        events = [] if former is None else self._close(event.process, former)
        process = self._processes[event.process] = _Process(event.time_ns, event.time_ns)
        before = self._recent.of(event.process)
        before = before.take(np.flatnonzero(before["kind"] <= Kind.FREE))
        is_after = before["start_ns"] >= event.time_ns
        process.may_begin = former is None and bool(is_after.all())
        _add_calls(process, before.take(np.flatnonzero(is_after)))
        return [*events, event]

    @_take.register
    def _(self, event: Watermark) -> list[Event]:
        self._calls_ns = max(self._calls_ns, event.time_ns)
        return [*self._infer_due(), event]

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
            process.end_ns, process.complete_ns = event.time_ns, _FOREVER
            if process.launches >= _MANY and not process.kernels and not event.incomplete:
                return [replace(event, incomplete=KERNELS_MISSING)]
        return [event]

    @_take.register
    def _(self, event: ProcessesEnded) -> list[Event]:
        for key in set(event.processes) & self._processes.keys():
            self._processes[key].has_ended = True
        self._forget_names(set(event.processes) - self._processes.keys())
        return [event]

    def _forget_names(self, gone: Set[ProcessKey]) -> None:
        if gone:
            self._names = {key: value for key, value in self._names.items() if key[0] not in gone}

    def _infer_due(self) -> list[Event]:
        found = []
        for key, process in self._processes.items():
            until_ns = max(min(process.complete_ns, self._calls_ns), self._calls_ns - _GIVE_UP_NS)
            if until_ns - process.done_ns >= _STEP_NS:
                process.done_ns = until_ns
                found.append(self._infer(key, process, until_ns, is_last=False))
        events = _events(found)
        over = [k for k, p in self._processes.items() if p.end_ns + _STEP_NS <= self._calls_ns]
        for key in over:
            process = self._processes.pop(key)
            events += self._close(key, process)
            if process.has_ended:
                self._forget_names({key})
        return events

    def _close(self, key: ProcessKey, process: _Process) -> list[Event]:
        return _events([self._infer(key, process, _FOREVER, is_last=True)])

    def _infer(
        self, key: ProcessKey, waiting: _Process, until_ns: int, *, is_last: bool
    ) -> ExecutionArray:
        """Records of launches before `until_ns`, of which all executions are there."""
        if not (waiting.is_anchored or _begins(waiting) or _anchor(waiting, until_ns)):
            self._bound(waiting)
            return np.empty(0, EXECUTION)
        calls = concatenate(waiting.calls, wire.CALL)
        is_due = calls["start_ns"] < until_ns
        due = calls.take(np.flatnonzero(is_due))
        waiting.calls = _parts(calls.take(np.flatnonzero(~is_due)))
        due = due.take(np.argsort(due["start_ns"], kind="stable"))
        launches = concatenate([waiting.left, due], wire.CALL)
        works = concatenate(waiting.executions, EXECUTION)
        recorded = np.concatenate([np.empty(0, np.uint32), *waiting.recorded])
        firsts = _first_of_each(works)
        aligned = align(
            Sequence(self._of_calls(key, launches), launches["start_ns"].astype(np.int64)),
            Sequence(self._of_executions(key, firsts), firsts["start_ns"].astype(np.int64)),
            is_last=is_last,
        )
        self.counts["unplaced"] += aligned.skipped
        decided = firsts["correlation_id"][: aligned.executions_done]
        waiting.executions = _parts(
            works.take(np.flatnonzero(~np.isin(works["correlation_id"], decided)))
        )
        waiting.recorded = [recorded[~np.isin(recorded, decided)]]
        waiting.left = launches.take(aligned.launches_left)
        if aligned.executions_done == len(firsts):
            # Nothing is left that a launch before `until_ns` could have done: it was captured into a graph, or failed.
            waiting.left = waiting.left[:0]
        without = len(launches) - len(aligned.launch) - len(waiting.left)
        self.counts["without_execution"] += without
        self._bound(waiting)
        lacks = ~np.isin(firsts["correlation_id"][aligned.execution], recorded)
        self.counts["inferred"] += int(np.count_nonzero(lacks))
        return _records(launches.take(aligned.launch[lacks]), firsts.take(aligned.execution[lacks]))

    def _bound(self, waiting: _Process) -> None:
        for name in ("calls", "executions", "waits", "synchronisations"):
            parts = getattr(waiting, name)
            over = sum(map(len, parts)) - MAX_WAITING
            if over > 0:
                self.counts["evicted"] += over
                setattr(waiting, name, [concatenate(parts, parts[0].dtype)[over:]])
        over = len(waiting.left) - MAX_WAITING
        if over > 0:
            self.counts["evicted"] += over
            waiting.left = waiting.left[over:]

    def _of_calls(self, process: ProcessKey, rows: CallArray) -> NDArray[np.uint64]:
        kinds = rows["kind"].astype(np.uint64)
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["object"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def _of_executions(self, process: ProcessKey, rows: ExecutionArray) -> NDArray[np.uint64]:
        kinds = np.where(rows["graph_id"] > 0, np.uint64(Kind.GRAPH_LAUNCH), _KIND_OF[rows["kind"]])
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["name"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def _name_numbers(self, process: ProcessKey, handles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        distinct, places = np.unique(handles, return_inverse=True)
        numbers = [self._names.get((process, handle), 0) for handle in distinct.tolist()]
        return np.array(numbers, np.uint64)[places]


def _of(key: ProcessKey, rows: NDArray[np.void]) -> NDArray[np.void]:
    is_of = (rows["tgid"] == key.tgid) & (rows["process_start_ns"] == key.start_ns)
    return rows if is_of.all() else rows.take(np.flatnonzero(is_of))


def _add_calls(process: _Process, rows: CallArray) -> None:
    is_launch = IS_SUBMISSION[rows["kind"]]
    process.launches += int(np.count_nonzero(rows["kind"] == Kind.LAUNCH))
    process.calls += _parts(rows.take(np.flatnonzero(is_launch)))
    if not process.is_anchored:
        process.waits += _parts(rows.take(np.flatnonzero(~is_launch)))


def _begins(process: _Process) -> bool:
    """Whether the first launch that we know is the program's first one."""
    if not process.may_begin or not process.calls:
        return False
    first_ns = min(int(rows["start_ns"].min()) for rows in process.calls)
    ran_ns = min((int(rows["start_ns"].min()) for rows in process.executions), default=first_ns)
    process.is_anchored = process.begin_ns + _CONTEXT_NS <= first_ns <= ran_ns
    return process.is_anchored


def _anchor(process: _Process, until_ns: int) -> bool:
    """Begin after the first synchronisation that both sides have seen: what was launched before it is left out."""
    waits = concatenate(process.waits, wire.CALL)
    waits = waits.take(np.flatnonzero((waits["flags"] & CallFlag.RETURNED) != 0))
    seen = concatenate(process.synchronisations, EXECUTION)
    seen = seen.take(np.flatnonzero(seen["end_ns"] <= until_ns))
    for row in seen.take(np.argsort(seen["correlation_id"])):
        inside = (waits["start_ns"] <= row["start_ns"]) & (row["end_ns"] <= waits["end_ns"])
        if np.count_nonzero(inside) != 1:
            continue
        begin_ns = waits["start_ns"][np.argmax(inside)]
        calls = concatenate(process.calls, wire.CALL)
        process.calls = _parts(calls.take(np.flatnonzero(calls["start_ns"] >= begin_ns)))
        works = concatenate(process.executions, EXECUTION)
        is_after = works["correlation_id"] > row["correlation_id"]
        process.executions = _parts(works.take(np.flatnonzero(is_after)))
        process.waits, process.synchronisations = [], []
        process.is_anchored = True
        return True
    return False


def _signatures(
    kinds: NDArray[np.uint64], names: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    which = np.where(kinds == Kind.COPY, sizes & _WHICH, names.astype(np.uint64))
    return (kinds << _KIND_SHIFT) | which


def _first_of_each(rows: ExecutionArray) -> ExecutionArray:
    """The first execution of each launch, in the order of launches.

    Ids are 32 bits and wrap: those that lie more than half of the range below the others are later ones.
    """
    ids = rows["correlation_id"].astype(np.int64)
    if len(ids) and int(ids.max()) - int(ids.min()) > _HALF:
        ids[ids < _HALF] += 2 * _HALF
    ordered = rows.take(np.lexsort((rows["start_ns"], ids)))
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered["correlation_id"][1:] != ordered["correlation_id"][:-1]
    return ordered.take(np.flatnonzero(is_first))


def _records(launches: CallArray, executions: ExecutionArray) -> ExecutionArray:
    """Rows of kind API: made in that thread, at the entry of that call."""
    rows = np.zeros(len(launches), EXECUTION)
    starts_ns = launches["start_ns"]
    has_end = (launches["flags"] & CallFlag.RETURNED) != 0
    rows["kind"] = GpuKind.API
    rows["start_ns"] = starts_ns
    rows["end_ns"] = np.where(has_end, np.maximum(launches["end_ns"], starts_ns), starts_ns)
    rows["thread_pointer"] = launches["thread_pointer"]
    rows["tgid"] = launches["tgid"]
    rows["process_start_ns"] = launches["process_start_ns"]
    for name in ("correlation_id", "context_id", "stream_id", "device"):
        rows[name] = executions[name]
    return rows


def _events(found: list[ExecutionArray]) -> list[Event]:
    return [Executions(rows) for rows in found if len(rows)]


def _parts(rows: NDArray[np.void]) -> list[NDArray[np.void]]:
    return [rows] if len(rows) else []
