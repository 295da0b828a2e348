"""Which captured launch each node of a graph is taken for, and the stacks that come of it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.events.attributions import AttributionArray, NoLaunch, StackPair
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.records import CallArray

_MAX_NODES: Final = 1 << 18
"""38 MB of launches. The graphs that were understood first go first."""
_MAX_PAIRS: Final = 1 << 16
"""Pairs of stacks that are told apart: nodes beyond them stand under the launch of their graph alone."""
_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""Odd, with bits all over: they spread two hashes into a third."""


class GraphNodes:
    """Launches by process, graph and node."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[ProcessKey, int], tuple[NDArray[np.uint64], CallArray]] = {}
        self._pairs: set[StackPair] = set()
        self._fresh: list[StackPair] = []
        self.estimated = 0
        """Executions that were shown under a captured launch."""

    def add(
        self, process: ProcessKey, graph: int, nodes: NDArray[np.uint64], launches: CallArray
    ) -> None:
        """The nodes of a graph, each with the launch that it is taken for."""
        order = np.argsort(nodes, kind="stable")
        self._graphs.pop((process, graph), None)
        self._graphs[process, graph] = nodes[order], launches.take(order)
        count = sum(len(each) for each, _ in self._graphs.values())
        while count > _MAX_NODES and len(self._graphs) > 1:
            count -= len(self._graphs.pop(next(iter(self._graphs)))[0])

    def forget(self, process: ProcessKey) -> None:
        """Its graphs are others from now on."""
        self._graphs = {key: value for key, value in self._graphs.items() if key[0] != process}
        self._pairs = {pair for pair in self._pairs if pair.process != process}

    def take_pairs(self) -> tuple[StackPair, ...]:
        """Pairs of stacks that are new; attributions refer to them."""
        fresh, self._fresh = self._fresh, []
        return tuple(fresh)

    def refine(self, told: AttributionArray, executions: JoinedArray) -> AttributionArray:
        """Put captured launches above the launch of their graph; `told` has a row for each of `executions`."""
        if not self._graphs:
            return told
        is_node = (executions["graph_id"] > 0) & (executions["no_launch"] == NoLaunch.NONE)
        places = np.flatnonzero(is_node)
        names = ["tgid", "process_start_ns", "graph_id"]
        for tgid, start_ns, graph in np.unique(executions[names][places]).tolist():
            known = self._graphs.get((ProcessKey(tgid, start_ns), graph))
            if known is None:
                continue
            of = places[
                (executions["tgid"][places] == tgid)
                & (executions["process_start_ns"][places] == start_ns)
                & (executions["graph_id"][places] == graph)
            ]
            self._refine_graph(told, executions, of, *known)
        return told

    def _refine_graph(
        self,
        told: AttributionArray,
        executions: JoinedArray,
        places: NDArray[np.intp],
        nodes: NDArray[np.uint64],
        launches: CallArray,
    ) -> None:
        wanted = executions["graph_node_id"][places]
        found = np.minimum(np.searchsorted(nodes, wanted), len(nodes) - 1)
        is_known = nodes[found] == wanted
        places, launches = places[is_known], launches.take(found[is_known])
        outer, inner = told["stack_hash"][places], launches["stack_hash"]
        apis = told["api"][places]
        keys = _combined(outer, inner, apis)
        has_room = self._note(told[places], outer, inner, keys)
        places, keys = places[has_room], keys[has_room]
        told["stack_hash"][places] = keys
        told["api"][places] = launches["api"][has_room]
        self.estimated += len(places)

    def _note(
        self,
        told: AttributionArray,
        outer: NDArray[np.uint64],
        inner: NDArray[np.uint64],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.bool_]:
        """Whether each pair of stacks is known, or there was room to remember it."""
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        has_room = np.ones(len(first), np.bool_)
        for number, place in enumerate(first.tolist()):
            pair = StackPair(
                key=StackKey(*keys[place].tolist()),
                process=ProcessKey(int(told["tgid"][place]), int(told["process_start_ns"][place])),
                outer=StackKey(*outer[place].tolist()),
                api=int(told["api"][place]),
                inner=StackKey(*inner[place].tolist()),
            )
            if pair in self._pairs:
                continue
            if len(self._pairs) >= _MAX_PAIRS:
                has_room[number] = False
                continue
            self._pairs.add(pair)
            self._fresh.append(pair)
        return has_room[which.reshape(-1)]


def _combined(
    outer: NDArray[np.uint64], inner: NDArray[np.uint64], apis: NDArray[np.uint16]
) -> NDArray[np.uint64]:
    """(n, 2) a key for each pair of stacks with a call between them. Never {0, 0}, which means no stack."""
    keys = np.empty_like(outer)
    for half, mix in enumerate(_MIX):
        mixed = (outer[:, half] ^ apis.astype(np.uint64)) * mix
        mixed ^= mixed >> np.uint64(32)
        keys[:, half] = (mixed + inner[:, half]) * _MIX[1 - half] | np.uint64(1)
    return keys
