"""Launches that CUPTI did not record, found by order (`segments`), as the records that it would have made.

A stage before the correlator: events go through as they are, and records of launches are put between them in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.correlate.gpu.match import claim
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.correlate.gpu.recent import RecentCalls
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.correlate.gpu.seen import Seen
from otel_gpuflame.correlate.gpu.segments import TOGETHER_NS, Executed, Launched, pair
from otel_gpuflame.events import apis, wire
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
    SamplingWindow,
    SourceCounters,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag, Kind, Outcome
from otel_gpuflame.events.wire_gpu import GpuKind

KERNELS_MISSING: Final = "kernels_missing"
"""Seen once in six processes on an H200, where capture began while the program created its context: CUPTI recorded
copies and synchronisations, not a single kernel, and said that nothing was lost."""
_MANY: Final = 16
"""Launches of kernels, of which one at least should have been executed; a few may all be captured into a graph."""
_SPARE_NAMES: Final = 1 << 12
"""Names of kernels of ended programs that are kept: the next one often has the same."""
MAX_WAITING: Final = 1 << 20
"""Rows of one sort of a process that wait; with more, all are let go, and pairing begins anew."""
_STEP_NS: Final = 100_000_000
"""Half of what the correlator stays behind: its executions have their launches by then."""
_MAX_CUTS: Final = 64
"""In one step, evenly spaced: programs may synchronise 10,000 times a second."""
_CONTEXT_NS: Final = 10_000_000
"""Creating a context takes longer: 110 to 160 ms on an H200."""
_KIND_SHIFT: Final = np.uint64(56)
_WHICH: Final = np.uint64((1 << 56) - 1)
_KIND_OF: Final = np.zeros(256, np.uint64)
_KIND_OF[[GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET]] = [Kind.LAUNCH, Kind.COPY, Kind.SET]
_IDS: Final = 1 << 32
_THREAD: Final = np.uint64(0xFFFFFFFF)
"""CUPTI has room for this part of pthread_self()."""
_SYNC_DETAIL: Final = {
    apis.BY_NAME[name].id: detail
    for name, detail in (
        ("cuEventSynchronize", 1),
        ("cuStreamSynchronize", 3),
        ("cuCtxSynchronize", 4),
    )
}
"""Calls that CUPTI records as a synchronisation of that detail."""
_LOST: Final = frozenset(
    outcome.name.lower()
    for outcome in Outcome
    if outcome not in (Outcome.SEEN, Outcome.SENT, Outcome.NESTED)
)
_LAUNCHES: Final = frozenset(kind.name.lower() for kind in apis.SUBMISSIONS)


class _Cut(NamedTuple):
    """A synchronisation that both sides have seen: launches before `time_ns` have ids below `id`."""

    time_ns: int
    id: int


@dataclass(slots=True)
class _Process:
    """What is known of one process and not decided yet. Parts are arrays in the order of their arrival."""

    begin_ns: int
    complete_ns: int
    """All executions of launches before it are here."""
    done_ns: int = 0
    calls: list[CallArray] = field(default_factory=list)
    """Launches."""
    waits: list[CallArray] = field(default_factory=list)
    executions: list[ExecutionArray] = field(default_factory=list)
    recorded: list[ExecutionArray] = field(default_factory=list)
    """Launches that CUPTI recorded itself."""
    synchronisations: list[ExecutionArray] = field(default_factory=list)
    is_anchored: bool = False
    """Both sides begin with the same launch: until then, what repeats itself could be paired a turn too early."""
    is_lossy: bool = False
    """Calls were lost since the last cut: only the next one tells where both sides agree again."""
    may_begin: bool = False
    """The program called nothing before `begin_ns`: if it then takes its time, it was creating its context."""
    end_ns: int = FOREVER
    """Executions of later launches are not delivered."""
    launches: int = 0
    kernels: int = 0
    has_ended: bool = False
    base_id: int = -1
    """Ids are counted from here, so that they may wrap."""


_PARTS: Final = ("calls", "waits", "executions", "recorded", "synchronisations")


class InferredLaunches:
    """Feed it every event in order; it returns them, with records of launches that lack one before each watermark."""

    def __init__(self) -> None:
        self._processes: dict[ProcessKey, _Process] = {}
        self._recent = RecentCalls()
        self._seen = Seen()
        self._names: dict[tuple[ProcessKey, int], int] = {}
        self._name_ids: dict[str, int] = {}
        self._name_count = 0
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
        # Both sides name kernels: the program by function handles, CUPTI by text.
        for name in event.names:
            self._name_count += 1
            identity = self._name_ids.setdefault(name.name, self._name_count)
            self._names[name.process, name.handle] = identity
        return [event]

    @_take.register
    def _(self, event: Calls) -> list[Event]:
        self._recent.add(event.rows)
        if self._processes:
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
            process.recorded += _parts(rows, kinds == GpuKind.API)
            process.executions += _parts(rows, _KIND_OF[kinds] != 0)
            process.synchronisations += _parts(rows, kinds == GpuKind.SYNC)
        return [event]

    @_take.register
    def _(self, event: ExecutionsBegin) -> list[Event]:
        former = self._processes.pop(event.process, None)
        events = [] if former is None else self._close(event.process, former)
        process = self._processes[event.process] = _Process(event.time_ns, event.time_ns)
        before = self._recent.of(event.process)
        before = before.take(np.flatnonzero(before["kind"] <= Kind.FREE))
        is_after = before["start_ns"] >= event.time_ns
        process.may_begin = (
            former is None and bool(is_after.all()) and self._seen.from_start(event.process)
        )
        _add_calls(process, before.take(np.flatnonzero(is_after)))
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
            launches = process.launches - _launches_after(process, event.time_ns)
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
        self._forget_names(set(event.processes) - self._processes.keys())
        return [event]

    def _forget_names(self, gone: Set[ProcessKey]) -> None:
        if not gone:
            return
        self._names = {key: value for key, value in self._names.items() if key[0] not in gone}
        if len(self._name_ids) > 2 * len(self._names) + _SPARE_NAMES:
            known = set(self._names.values())
            self._name_ids = {name: each for name, each in self._name_ids.items() if each in known}

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
                self._forget_names({key})
        return events

    def _close(self, key: ProcessKey, process: _Process) -> list[Event]:
        return self._infer(key, process, process.end_ns, is_last=True)

    def _infer(
        self, key: ProcessKey, process: _Process, until_ns: int, *, is_last: bool
    ) -> list[Event]:
        """Records of launches before `until_ns`, of which all executions are there."""
        cuts = _cuts(process, until_ns)
        if not process.is_anchored and not _begins(process, until_ns):
            if not cuts:
                return []
            self.counts["ambiguous"] += _drop_before(process, cuts[0])
            process.is_anchored, process.is_lossy = True, False
            cuts = cuts[1:]
        stretch = _Stretch(self, key, process, until_ns)
        for cut in cuts:
            stretch.close_at(cut)
            process.is_lossy = False
        if is_last:
            stretch.close_at(_Cut(until_ns, _IDS))
        elif not process.is_lossy:
            stretch.close_if_equal()
        stretch.keep_the_rest()
        return [Executions(rows) for rows in stretch.found if len(rows)]

    def _bound(self, process: _Process) -> None:
        waiting = {name: sum(map(len, getattr(process, name))) for name in _PARTS}
        if max(waiting.values()) <= MAX_WAITING:
            return
        self.counts["evicted"] += sum(waiting.values())
        for name in _PARTS:
            setattr(process, name, [])
        # What is left of both sides no longer begins with the same launch.
        process.is_anchored = process.may_begin = False

    def signatures_of_calls(self, process: ProcessKey, rows: CallArray) -> NDArray[np.uint64]:
        """(n,) kind, and which kernel or how many bytes."""
        kinds = rows["kind"].astype(np.uint64)
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["object"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def signatures_of_executions(
        self, process: ProcessKey, rows: ExecutionArray
    ) -> NDArray[np.uint64]:
        """The same of executions."""
        kinds = np.where(rows["graph_id"] > 0, np.uint64(Kind.GRAPH_LAUNCH), _KIND_OF[rows["kind"]])
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["name"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def _name_numbers(self, process: ProcessKey, handles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        distinct, places = np.unique(handles, return_inverse=True)
        numbers = [self._names.get((process, handle), 0) for handle in distinct.tolist()]
        return np.array(numbers, np.uint64)[places]


class _Stretch:
    """Both sides of one process in order, from the last cut on."""

    def __init__(
        self, owner: InferredLaunches, key: ProcessKey, process: _Process, until_ns: int
    ) -> None:
        self._owner, self._key, self._process = owner, key, process
        calls = concatenate(process.calls, wire.CALL)
        self._calls = calls.take(np.argsort(calls["start_ns"], kind="stable"))
        self._starts_ns = self._calls["start_ns"].astype(np.int64)
        works = concatenate(process.executions, EXECUTION)
        ids = _counted_ids(process, works)
        order = np.lexsort((works["start_ns"], ids))
        self._works, self._ids = works.take(order), ids[order]
        self._recorded = concatenate(process.recorded, EXECUTION)
        self._has_record = np.isin(self._works["correlation_id"], self._recorded["correlation_id"])
        self._is_claimed = _claimed(self._calls, self._recorded)
        self._until_ns = until_ns
        self._call, self._work = 0, 0
        self.found: list[ExecutionArray] = []

    def close_at(self, cut: _Cut) -> None:
        """Everything before the cut belongs together."""
        calls_end = int(np.searchsorted(self._starts_ns, cut.time_ns))
        works_end = int(np.searchsorted(self._ids, cut.id))
        self._close(max(calls_end, self._call), max(works_end, self._work))

    def close_if_equal(self) -> None:
        """Where no cut has come: as many executions, in the order of ids, as there are launches, of the same kinds."""
        calls_end = int(np.searchsorted(self._starts_ns, self._until_ns))
        calls = np.arange(self._call, calls_end)
        calls = calls[~self._is_claimed[calls]]
        places = self._firsts(self._work, len(self._works))
        if not len(calls) or len(places) < len(calls):
            return
        theirs = self._owner.signatures_of_executions(self._key, self._works.take(places))
        ours = self._owner.signatures_of_calls(self._key, self._calls.take(calls))
        if np.array_equal(np.sort(ours), np.sort(theirs[: len(calls)])):
            last = places[len(calls) - 1]
            self._close(calls_end, int(np.searchsorted(self._ids, self._ids[last], side="right")))

    def keep_the_rest(self) -> None:
        """What has not been closed waits for the next step."""
        process = self._process
        process.calls = _parts(self._calls[self._call :])
        process.executions = _parts(self._works[self._work :])
        left = np.isin(
            self._recorded["correlation_id"], self._works["correlation_id"][self._work :]
        )
        left |= self._recorded["start_ns"] >= self._until_ns
        process.recorded = _parts(self._recorded, left)
        if self._work:
            process.base_id = int(self._works["correlation_id"][self._work - 1])

    def _firsts(self, begin: int, end: int) -> NDArray[np.intp]:
        """Places of the first execution of each launch that has no record."""
        ids = self._ids[begin:end]
        is_first = np.ones(len(ids), np.bool_)
        is_first[1:] = ids[1:] != ids[:-1]
        return begin + np.flatnonzero(is_first & ~self._has_record[begin:end])

    def _close(self, calls_end: int, works_end: int) -> None:
        calls = np.arange(self._call, calls_end)
        calls = calls[~self._is_claimed[calls]]
        places = self._firsts(self._work, works_end)
        self._call, self._work = calls_end, works_end
        launches, works = self._calls.take(calls), self._works.take(places)
        pairs = pair(
            Launched(
                self._owner.signatures_of_calls(self._key, launches),
                launches["start_ns"].astype(np.int64),
                launches["thread_pointer"],
            ),
            Executed(
                self._owner.signatures_of_executions(self._key, works),
                works["start_ns"].astype(np.int64),
            ),
        )
        counts = self._owner.counts
        counts["inferred"] += len(pairs.launch)
        counts["ambiguous"] += pairs.ambiguous
        counts["without_execution"] += max(len(launches) - len(works), 0)
        self.found.append(_records(launches.take(pairs.launch), works.take(pairs.execution)))


def _of(key: ProcessKey, rows: NDArray[np.void]) -> NDArray[np.void]:
    is_of = (rows["tgid"] == key.tgid) & (rows["process_start_ns"] == key.start_ns)
    return rows if is_of.all() else rows.take(np.flatnonzero(is_of))


def _add_calls(process: _Process, rows: CallArray) -> None:
    is_launch = IS_SUBMISSION[rows["kind"]]
    process.launches += int(np.count_nonzero(rows["kind"] == Kind.LAUNCH))
    process.calls += _parts(rows, is_launch)
    process.waits += _parts(rows, np.isin(rows["api"], list(_SYNC_DETAIL)))


def _launches_after(process: _Process, time_ns: int) -> int:
    """Launches of kernels that no window of executions has seen: probes go later than it."""
    return sum(
        int(np.count_nonzero((rows["kind"] == Kind.LAUNCH) & (rows["start_ns"] > time_ns)))
        for rows in process.calls
    )


def _begins(process: _Process, until_ns: int) -> bool:
    """Whether the first launch that we know is the program's first one."""
    if not process.may_begin or not process.calls:
        return False
    first_ns = min(int(rows["start_ns"].min()) for rows in process.calls)
    if until_ns <= first_ns:
        # What ran before may not be here yet.
        return False
    ran_ns = min((int(rows["start_ns"].min()) for rows in process.executions), default=first_ns)
    process.is_anchored = process.begin_ns + _CONTEXT_NS <= first_ns <= ran_ns
    process.may_begin = process.is_anchored
    return process.is_anchored


def _cuts(process: _Process, until_ns: int) -> list[_Cut]:
    """Synchronisations that lie in exactly one wait of their kind, in order. Each is looked at once."""
    seen = concatenate(process.synchronisations, EXECUTION)
    is_due = seen["end_ns"] <= until_ns
    due = seen.take(np.flatnonzero(is_due))
    process.synchronisations = _parts(seen, ~is_due)
    waits = concatenate(process.waits, wire.CALL)
    process.waits = _parts(waits, waits["end_ns"].astype(np.int64) > until_ns)
    waits = waits.take(np.flatnonzero((waits["flags"] & CallFlag.RETURNED) != 0))
    ids = _counted_ids(process, due)
    order = np.argsort(ids)
    if len(order) > _MAX_CUTS:
        order = order[np.linspace(0, len(order) - 1, _MAX_CUTS).astype(np.intp)]
    details = np.array([_SYNC_DETAIL[api] for api in waits["api"].tolist()], np.uint16)
    launches = concatenate(process.calls, wire.CALL)
    cuts: list[_Cut] = []
    for place in order.tolist():
        row = due[place]
        inside = (waits["start_ns"] <= row["start_ns"]) & (row["end_ns"] <= waits["end_ns"])
        inside &= details == row["detail"]
        if np.count_nonzero(inside) != 1:
            continue
        wait = waits[int(np.argmax(inside))]
        cut = _Cut(int(wait["start_ns"]), int(ids[place]))
        if _is_alone(wait, launches) and (not cuts or cut.time_ns > cuts[-1].time_ns):
            cuts.append(cut)
    return cuts


def _is_alone(wait: Any, launches: CallArray) -> bool:
    """Whether no other thread launched so close to the begin of the wait that ids may have another order."""
    distance = np.abs(launches["start_ns"].astype(np.int64) - int(wait["start_ns"]))
    others = launches["thread_pointer"] != wait["thread_pointer"]
    return not bool((others & (distance < TOGETHER_NS)).any())


def _drop_before(process: _Process, cut: _Cut) -> int:
    """Begin at the cut: what was launched before it is left out. Returns of how many launches there were executions."""
    calls = concatenate(process.calls, wire.CALL)
    process.calls = _parts(calls, calls["start_ns"].astype(np.int64) >= cut.time_ns)
    works = concatenate(process.executions, EXECUTION)
    is_after = _counted_ids(process, works) > cut.id
    process.executions = _parts(works, is_after)
    return len(np.unique(works["correlation_id"][~is_after]))


def _counted_ids(process: _Process, rows: ExecutionArray) -> NDArray[np.int64]:
    """Ids as a count that does not wrap within half of their range."""
    ids = rows["correlation_id"].astype(np.int64)
    if process.base_id < 0 and len(ids):
        process.base_id = int(ids.min())
    # A little below the base too: what was launched before may end later.
    return (ids - process.base_id + _IDS // 4) % _IDS


def _claimed(calls: CallArray, recorded: ExecutionArray) -> NDArray[np.bool_]:
    """Calls of which CUPTI has a record: for certain, by thread and time."""
    starts_ns = calls["start_ns"].astype(np.int64)
    ends_ns = calls["end_ns"].astype(np.int64)
    returned = ((calls["flags"] & CallFlag.RETURNED) != 0) & (ends_ns >= starts_ns)
    claims = claim(
        (recorded["thread_pointer"] & _THREAD, recorded["start_ns"].astype(np.int64)),
        (calls["thread_pointer"] & _THREAD, starts_ns),
        np.where(returned, ends_ns, np.iinfo(np.int64).max),
        np.ones(len(calls), np.bool_),
    )
    claimed = np.zeros(len(calls), np.bool_)
    claimed[claims.call[claims.call >= 0]] = True
    return claimed


def _signatures(
    kinds: NDArray[np.uint64], names: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    which = np.where(kinds == Kind.COPY, sizes & _WHICH, names.astype(np.uint64))
    return (kinds << _KIND_SHIFT) | which


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


def _parts(
    rows: NDArray[np.void], chosen: NDArray[np.bool_] | None = None
) -> list[NDArray[np.void]]:
    if chosen is not None and not chosen.all():
        rows = rows.take(np.flatnonzero(chosen))
    return [rows] if len(rows) else []
