"""Executions by stream, in the order in which each stream did them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import (
    Codes,
    Index,
    TimeKeys,
    Times,
    codes_of,
    running_max,
    running_min_backwards,
    shared_codes,
    slices_of,
    stable_order,
)
from otel_gpuflame.correlate.gpu.resolve import streams_of
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.correlate.gpu.streams import StreamTable
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

LaneArray: TypeAlias = NDArray[np.void]

LANE: Final[np.dtype[Any]] = np.dtype(
    [
        ("process_start_ns", "<u8"),
        ("tgid", "<u4"),
        ("context_id", "<u4"),
        ("stream_id", "<u4"),
        ("device", "<u4"),
    ]
)
"""A stream that did something. Nodes of a graph belong to the stream that the graph was launched on."""
_STREAM_KEY: Final = ("process_start_ns", "tgid", "context_id", "stream_id")


@dataclass(frozen=True, slots=True)
class Work:
    """Columns over executions sorted by lane, then start; `row` is where each is in `rows`, which are as they came."""

    rows: JoinedArray
    lanes: LaneArray
    lane_of_row: Codes
    """Over `rows`."""
    row: Index
    lane: Codes
    first: Index
    """(lanes + 1,) where each lane's executions begin."""
    start_ns: Times
    end_ns: Times
    reach_ns: Times
    """Until when the lane was busy with this execution and those before it."""
    entry_ns: Times
    """By when this one had been asked for: streams keep order, so by when any that came after it had been."""
    keys: TimeKeys
    """For all times above."""
    by_start: NDArray[np.int64]
    by_reach: NDArray[np.int64]
    by_entry: NDArray[np.int64]

    def submitted(self, lanes: Codes, before_ns: Times) -> Index:
        """How far into each lane, as an index of the columns, work was asked for at or before a time."""
        return self.keys.find(self.by_entry, lanes, before_ns, "right")


def arrange(rows: JoinedArray, table: StreamTable) -> Work:
    """`rows`, sorted by device and start, by stream."""
    stream_id = _launch_streams(rows, table)
    process, tgid = rows["process_start_ns"], rows["tgid"]
    lane_of_row, some = codes_of(process, tgid, rows["context_id"], stream_id)
    lanes = np.zeros(len(some), LANE)
    for name in ("process_start_ns", "tgid", "context_id", "device"):
        lanes[name] = rows[name][some]
    lanes["stream_id"] = stream_id[some]
    order = stable_order(lane_of_row)
    lane = lane_of_row[order]
    start, end = rows["start_ns"][order], rows["end_ns"][order]
    has_launch = (rows["no_launch"] == NoLaunch.NONE)[order]
    asked = np.where(has_launch, np.minimum(rows["launch_start_ns"][order], start), start)
    reach, entry = running_max(lane, end), running_min_backwards(lane, asked)
    keys = TimeKeys(len(lanes), start, reach, entry)
    return Work(
        rows=rows,
        lanes=lanes,
        lane_of_row=lane_of_row,
        row=order,
        lane=lane,
        first=slices_of(lane, len(lanes)),
        start_ns=start,
        end_ns=end,
        reach_ns=reach,
        entry_ns=entry,
        keys=keys,
        by_start=keys.pack(lane, start),
        by_reach=keys.pack(lane, reach),
        by_entry=keys.pack(lane, entry),
    )


def _launch_streams(rows: JoinedArray, table: StreamTable) -> NDArray[np.uint32]:
    """(n,) the stream that each was launched on: branches of a graph run on streams of the driver's own."""
    streams = rows["stream_id"].astype(np.uint32)
    nodes = np.flatnonzero(
        (rows["launch_kind"] == Kind.GRAPH_LAUNCH) & (rows["no_launch"] == NoLaunch.NONE)
    )
    if not len(nodes):
        return streams
    names = ("launch_start_ns", "tid", "tgid", "process_start_ns")
    launch, _ = codes_of(*(rows[name][nodes] for name in names))
    _, first = np.unique(launch, return_index=True)
    calls = np.zeros(len(first), wire.CALL)
    for name in ("process_start_ns", "tgid", "tid", "stream"):
        calls[name] = rows[name][nodes[first]]
    calls["start_ns"] = rows["launch_start_ns"][nodes[first]]
    told = streams_of(table, calls)
    streams[nodes] = np.where(told.found, told.stream_id, streams[nodes[first]])[launch]
    return streams


def find_lanes(
    work: Work, calls: CallArray, context_id: NDArray[np.uint32], stream_id: NDArray[np.uint32]
) -> Codes:
    """(n,) lane of the stream that each call is about; -1 where that stream did nothing."""
    mine, asked, count = shared_codes(
        [work.lanes[name] for name in _STREAM_KEY],
        [calls["process_start_ns"], calls["tgid"], context_id, stream_id],
    )
    lane = np.full(count, -1, np.int64)
    lane[mine] = np.arange(len(mine))
    return lane[asked]
