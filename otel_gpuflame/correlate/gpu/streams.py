"""Stream handles and the streams that CUPTI knows: learnt from launches whose executions are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.containment import contained_pairs
from otel_gpuflame.correlate.gpu.keys import Index, codes_of
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.events.wire_gpu import GpuKind

LEGACY_STREAM: Final = 1
"""CU_STREAM_LEGACY. Handle 0 means this one, unless the program was compiled for per-thread default streams."""
PER_THREAD_STREAM: Final = 2
"""CU_STREAM_PER_THREAD."""
LAST_DEFAULT: Final = PER_THREAD_STREAM
"""Handles up to this are names of default streams."""
CONTEXT_OF_THREAD: Final = 0xFFFFFFFFFFFFFFFF
"""Not a handle: the row says which context a thread works in."""
_SYNC_STREAM: Final = 3
_SYNC_CONTEXT: Final = 4
_NO_STREAM: Final = 0xFFFFFFFF
_MAX_MEANINGS: Final = 1 << 16
"""Streams, and threads that use default streams. Beyond it the oldest are forgotten."""

MeaningArray: TypeAlias = NDArray[np.void]

MEANING: Final[np.dtype[Any]] = np.dtype(
    [
        ("process_start_ns", "<u8"),
        ("handle", "<u8"),
        ("time_ns", "<u8"),
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("context_id", "<u4"),
        ("stream_id", "<u4"),
        ("device", "<u4"),
        ("is_graph", "<u4"),
    ]
)
"""At `time_ns` `handle` meant this stream. `tid` is 0 but where the meaning depends on the thread. `device` is that of
the context where it is known.

`is_graph`: told by a node of a graph, which may run elsewhere than where the graph was launched: second choice.
"""
_KEY: Final = ("process_start_ns", "tgid", "tid", "handle", "is_graph")
_VALUE: Final = ("context_id", "stream_id")
_PROCESS: Final = ("process_start_ns", "tgid")


@dataclass(frozen=True, slots=True)
class StreamTable:
    """What is known of stream handles: `meanings` has a row wherever one changed, oldest first for each key."""

    meanings: MeaningArray
    independent: MeaningArray
    """Streams that were seen not to synchronise with the legacy default stream of their context."""
    forgotten: int = 0
    """Rows dropped for want of room."""


EMPTY: Final = StreamTable(np.zeros(0, MEANING), np.zeros(0, MEANING))


def learn(table: StreamTable, executions: JoinedArray) -> StreamTable:
    """What launches with known executions say; `executions` are sorted by start on each device."""
    tells = (executions["no_launch"] == NoLaunch.NONE) & (executions["stream_id"] != _NO_STREAM)
    is_graph = executions["launch_kind"] == Kind.GRAPH_LAUNCH
    plain = _changes(executions, np.flatnonzero(tells & ~is_graph))
    nodes = _first_nodes(executions, np.flatnonzero(tells & is_graph))
    rows = executions.take(np.concatenate([plain, nodes]))
    of_streams = _meanings(rows, rows["stream"], "launch_start_ns")
    of_streams["tid"] = np.where(rows["stream"] <= LAST_DEFAULT, rows["tid"], 0)
    of_streams["is_graph"] = np.arange(len(rows)) >= len(plain)
    threads = np.full(len(rows), CONTEXT_OF_THREAD, np.uint64)
    of_contexts = _meanings(rows, threads, "launch_start_ns")
    of_contexts["stream_id"] = 0
    return _merged(table, np.concatenate([of_streams, of_contexts]))


def learn_from_waits(table: StreamTable, syncs: ExecutionArray, waits: CallArray) -> StreamTable:
    """What CUPTI's synchronisation records say that lie inside a synchronise of one thread only."""
    streams = apis.BY_NAME["cuStreamSynchronize"].id
    contexts = apis.BY_NAME["cuCtxSynchronize"].id
    parts = []
    for detail, api in ((_SYNC_STREAM, streams), (_SYNC_CONTEXT, contexts)):
        inner = syncs.take(
            np.flatnonzero((syncs["kind"] == GpuKind.SYNC) & (syncs["detail"] == detail))
        )
        outer = waits.take(np.flatnonzero(waits["api"] == api))
        pairs = contained_pairs(inner, outer)
        alone = np.bincount(pairs.owner, minlength=len(inner))[pairs.owner] == 1
        sync, wait = inner.take(pairs.owner[alone]), outer.take(pairs.item[alone])
        rows = _meanings(sync, np.full(len(sync), CONTEXT_OF_THREAD, np.uint64), "start_ns")
        # The call's own arguments and context are meant: they hold from its entry on.
        rows["tid"], rows["stream_id"], rows["time_ns"] = wait["tid"], 0, wait["start_ns"]
        parts.append(rows)
        if detail == _SYNC_STREAM:
            rows = _meanings(sync, wait["stream"], "start_ns")
            rows["tid"] = np.where(wait["stream"] <= LAST_DEFAULT, wait["tid"], 0)
            rows["time_ns"] = wait["start_ns"]
            parts.append(rows.take(np.flatnonzero(sync["stream_id"] != _NO_STREAM)))
    return _merged(table, np.concatenate(parts))


def forget(table: StreamTable, tgid: int, process_start_ns: int) -> StreamTable:
    """Without a process that has ended."""
    meanings, independent = (
        rows.take(
            np.flatnonzero((rows["tgid"] != tgid) | (rows["process_start_ns"] != process_start_ns))
        )
        for rows in (table.meanings, table.independent)
    )
    return replace(table, meanings=meanings, independent=independent)


def _changes(executions: JoinedArray, places: Index) -> Index:
    """Those of `places` that tell all: the first of each kind, and all of what contradicts one another."""
    names = (*_PROCESS, "tid", "stream", "context_id", "stream_id")
    codes, some = codes_of(*(executions[name][places] for name in names))
    told = executions.take(places[some])
    handle = told["stream"]
    thread = np.where(handle <= LAST_DEFAULT, told["tid"], 0)
    process = [told[name] for name in _PROCESS]
    differs = _differs((*process, thread, handle), (told["context_id"], told["stream_id"]))
    differs |= _differs((*process, told["tid"]), (told["context_id"],))
    first = np.full(len(some), -1, np.intp)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return places[np.union1d(first, np.flatnonzero(differs[codes]))]


def _differs(
    keys: Sequence[NDArray[np.generic]], values: Sequence[NDArray[np.generic]]
) -> NDArray[np.bool_]:
    """Whether rows with a row's keys have different values."""
    groups, _ = codes_of(*keys)
    ids, _ = codes_of(*values)
    low = np.full(len(groups), len(ids))
    high = np.full(len(groups), -1)
    np.minimum.at(low, groups, ids)
    np.maximum.at(high, groups, ids)
    differs: NDArray[np.bool_] = low[groups] != high[groups]
    return differs


def _first_nodes(executions: JoinedArray, nodes: Index) -> Index:
    """Of each graph launch among `nodes` the node that ran first."""
    launched = executions["launch_start_ns"][nodes]
    is_new = np.ones(len(nodes), np.bool_)
    is_new[1:] = launched[1:] != launched[:-1]
    nodes = nodes[is_new]
    names = (*_PROCESS, "tid", "launch_start_ns")
    codes, _ = codes_of(*(executions[name][nodes] for name in names))
    _, first = np.unique(codes, return_index=True)
    return nodes[first]


def _meanings(rows: NDArray[np.void], handles: NDArray[np.uint64], time: str) -> MeaningArray:
    meanings = np.zeros(len(rows), MEANING)
    for name in ("process_start_ns", "tgid", "context_id", "stream_id", "device"):
        meanings[name] = rows[name]
    if "tid" in (rows.dtype.names or ()):
        meanings["tid"] = rows["tid"]
    meanings["handle"], meanings["time_ns"] = handles, rows[time]
    return meanings


def _merged(table: StreamTable, more: MeaningArray) -> StreamTable:
    rows = np.concatenate([table.meanings, more])
    if not len(rows):
        return table
    codes, _ = codes_of(*(rows[name] for name in _KEY))
    order = np.lexsort((rows["time_ns"], codes))
    rows, codes = rows.take(order), codes[order]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = codes[1:] != codes[:-1]
    for name in _VALUE:
        is_new[1:] |= rows[name][1:] != rows[name][:-1]
    rows = rows.take(np.flatnonzero(is_new))
    over = len(rows) - _MAX_MEANINGS
    if over > 0:
        rows = rows.take(np.sort(np.argsort(rows["time_ns"], kind="stable")[over:]))
    return replace(table, meanings=rows, forgotten=table.forgotten + max(over, 0))
