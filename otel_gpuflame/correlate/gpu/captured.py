"""Launches that were captured into a graph: they give the device nothing to do until the graph is launched.

A stage before all that pairs launches with executions: captured launches go no further, and are kept until a graph runs
the same kernels in the same order. Then each of its nodes is taken for the launch in its place: an estimate, since
nobody tells which graph a capture has become.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.captures import Captures, begins_or_ends
from otel_gpuflame.correlate.gpu.graph_nodes import GraphNodes
from otel_gpuflame.correlate.gpu.kernel_numbers import KernelNumbers
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events.executions import (
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Calls, Event, Names, ProcessesEnded
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.events.wire_gpu import GpuKind

_MAX_KEPT: Final = 1 << 16
"""Captured launches of a process. vLLM captures some 67 graphs of hundreds of kernels."""
_MAX_TRIES: Final = 4
"""Replays of a graph that are compared: the first ones may be cut off by the begin of a window."""
_KEPT_REPLAYS: Final = 2
"""The first that is seen of a graph may have begun before anybody looked. The one after it is seen from its begin,
wherever batches end."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Launches of one capture, by time, and the names of their kernels."""

    names: NDArray[np.uint64]
    launches: CallArray


@dataclass(slots=True)
class _Replay:
    """One launch of a graph that is not understood yet."""

    correlation_id: int
    first_ns: int
    parts: list[ExecutionArray] = field(default_factory=list)


@dataclass(slots=True)
class _Process:
    captures: Captures = field(default_factory=Captures)
    sequences: list[_Sequence] = field(default_factory=list)
    replays: dict[int, list[_Replay]] = field(default_factory=dict)
    """By graph, in order."""
    tries: Counter[int] = field(default_factory=Counter)
    decided: set[int] = field(default_factory=set)


class CapturedLaunches:
    """Feed it every event in order; what goes on is without captured launches. Fills `nodes`."""

    def __init__(self, nodes: GraphNodes) -> None:
        self._nodes = nodes
        self._processes: dict[ProcessKey, _Process] = {}
        self._kernels = KernelNumbers(self._kept_kernels)
        self.captured: Counter[str] = Counter()
        """Captured calls, by the name of their kind."""
        self.counts: Counter[str] = Counter()
        """Graphs that were `matched`, `unmatched` or `ambiguous`; captures that `failed`; `evicted` launches."""

    def feed(self, event: Event) -> list[Event]:
        """Take in one event; what goes on, in order."""
        return self._take(event)

    def finish(self) -> None:
        """Decide what is left."""
        for key, process in self._processes.items():
            self._decide(key, process, FOREVER)

    @singledispatchmethod
    def _take(self, event: Event) -> list[Event]:
        return [event]

    @_take.register
    def _(self, event: Names) -> list[Event]:
        self._kernels.learn(event.names)
        return [event]

    @_take.register
    def _(self, event: Calls) -> list[Event]:
        rows = event.rows
        concerned = {key for key, process in self._processes.items() if process.captures.is_open}
        turns = begins_or_ends(rows)
        if len(turns):
            pairs = np.unique(rows[["tgid", "process_start_ns"]][turns]).tolist()
            concerned.update(ProcessKey(*pair) for pair in pairs)
        if not concerned:
            return [event]
        is_captured = np.zeros(len(rows), np.bool_)
        for key in concerned:
            places = _places_of(key, rows)
            process = self._processes.setdefault(key, _Process())
            # Rows are long: they are copied only where another process has some too.
            of = rows if len(places) == len(rows) else rows.take(places)
            failed_before = process.captures.failed
            is_captured[places], ended = process.captures.follow(of)
            self.counts += Counter(failed=process.captures.failed - failed_before)
            for captured in ended:
                self._keep(key, process, captured)
        if not is_captured.any():
            return [event]
        kinds, counts = np.unique(rows["kind"][is_captured], return_counts=True)
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            self.captured[Kind(kind).name.lower()] += count
        rest = rows.take(np.flatnonzero(~is_captured))
        return [Calls(rest)] if len(rest) else []

    @_take.register
    def _(self, event: Executions) -> list[Event]:
        rows = event.rows
        for key, process in self._processes.items():
            if process.sequences:
                is_node = (rows["graph_id"] > 0) & (rows["kind"] == GpuKind.KERNEL)
                nodes = rows.take(np.flatnonzero(is_node))
                self._note_replays(process, nodes.take(_places_of(key, nodes)))
        return [event]

    @_take.register
    def _(self, event: ExecutionsBegin) -> list[Event]:
        process = self._processes.get(event.process)
        if process is not None:
            process.replays.clear()
            process.tries.clear()
            process.decided.clear()
        return [event]

    @_take.register
    def _(self, event: ExecutionWatermark) -> list[Event]:
        process = self._processes.get(event.process)
        if process is not None:
            self._decide(event.process, process, event.time_ns)
        return [event]

    @_take.register
    def _(self, event: ExecutionsEnd) -> list[Event]:
        process = self._processes.get(event.process)
        if process is not None:
            self._decide(event.process, process, FOREVER)
        return [event]

    @_take.register
    def _(self, event: ProcessesEnded) -> list[Event]:
        gone = set(event.processes)
        for key in gone & self._processes.keys():
            self._decide(key, self._processes.pop(key), FOREVER)
        self._kernels.forget(gone)
        return [event]

    def _kept_kernels(self) -> Iterator[int]:
        """Numbers by which replays will be compared with captures."""
        for process in self._processes.values():
            for sequence in process.sequences:
                yield from np.unique(sequence.names).tolist()

    def _keep(self, key: ProcessKey, process: _Process, rows: CallArray) -> None:
        launches = rows.take(np.flatnonzero(rows["kind"] == Kind.LAUNCH))
        if len(launches):
            names = self._numbers(key, launches["object"])
            process.sequences.append(_Sequence(names, launches))
        kept = sum(len(each.launches) for each in process.sequences)
        while kept > _MAX_KEPT:
            oldest = process.sequences.pop(0)
            kept -= len(oldest.launches)
            self.counts["evicted"] += len(oldest.launches)

    def _note_replays(self, process: _Process, rows: ExecutionArray) -> None:
        for graph in np.unique(rows["graph_id"]).tolist():
            if graph in process.decided:
                continue
            of = rows.take(np.flatnonzero(rows["graph_id"] == graph))
            replays = process.replays.setdefault(graph, [])
            launches, firsts = np.unique(of["correlation_id"], return_index=True)
            # Rows of one launch lie side by side, launches in their order.
            for launch in launches[np.argsort(firsts)].tolist():
                _note_replay(replays, launch, of)

    def _decide(self, key: ProcessKey, process: _Process, complete_ns: int) -> None:
        """Of launches before `complete_ns` all executions are here."""
        for graph, replays in tuple(process.replays.items()):
            while replays and replays[0].first_ns < complete_ns and graph not in process.decided:
                rows = np.concatenate(replays.pop(0).parts)
                process.tries[graph] += 1
                if self._match(key, process, graph, rows) or process.tries[graph] >= _MAX_TRIES:
                    process.decided.add(graph)
            if graph in process.decided or not replays:
                del process.replays[graph]

    def _match(self, key: ProcessKey, process: _Process, graph: int, rows: ExecutionArray) -> bool:
        """Whether it is decided what the nodes of a graph are; `rows` is one replay."""
        for order in _orders(rows):
            names = self._numbers(key, order["name"])
            found = [each for each in process.sequences if np.array_equal(each.names, names)]
            if not found:
                continue
            if _are_alike([each.launches for each in found]):
                self._nodes.add(key, graph, order["graph_node_id"], found[0].launches)
                self.counts["matched"] += 1
            else:
                self.counts["ambiguous"] += 1
            return True
        if process.tries[graph] >= _MAX_TRIES:
            self.counts["unmatched"] += 1
        return False

    def _numbers(self, key: ProcessKey, handles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(n,) which name each handle has now; a handle without one is like no other."""
        known = self._kernels.of(key, handles)
        return np.where(known > 0, known, handles | np.uint64(1 << 63))


def _note_replay(replays: list[_Replay], launch: int, rows: ExecutionArray) -> None:
    """Keep those of `rows` that are of a launch, if it is one of the first."""
    known = [each for each in replays if each.correlation_id == launch]
    if not known and len(replays) >= _KEPT_REPLAYS:
        return
    own = rows.take(np.flatnonzero(rows["correlation_id"] == launch))
    first_ns = int(own["start_ns"].min())
    if not known:
        known = [_Replay(launch, first_ns)]
        replays += known
    known[0].parts.append(own)
    known[0].first_ns = min(known[0].first_ns, first_ns)


def _orders(rows: ExecutionArray) -> Iterator[ExecutionArray]:
    """A replay's executions in the order in which nodes were made, and in that in which they ran.

    On an H200, nodes are numbered in the order of the captured launches (192 of 192, and they ran in that order).
    """
    yield rows.take(np.argsort(rows["graph_node_id"], kind="stable"))
    yield rows.take(np.argsort(rows["start_ns"], kind="stable"))


def _are_alike(launches: list[CallArray]) -> bool:
    """Whether they were made at the same places, by the same calls."""
    first = launches[0]
    return all(
        np.array_equal(first[name], other[name])
        for other in launches[1:]
        for name in ("stack_hash", "api")
    )


def _places_of(key: ProcessKey, rows: NDArray[np.void]) -> NDArray[np.intp]:
    is_of = (rows["tgid"] == key.tgid) & (rows["process_start_ns"] == key.start_ns)
    return np.flatnonzero(is_of)
