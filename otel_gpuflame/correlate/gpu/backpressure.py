"""Launches that the driver held back because its queue was full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.attribute import attributions, what_ran
from otel_gpuflame.correlate.gpu.containment import contained_pairs
from otel_gpuflame.correlate.gpu.dependencies import Pairs
from otel_gpuflame.correlate.gpu.keys import sum_by
from otel_gpuflame.correlate.gpu.resolve import streams_of
from otel_gpuflame.correlate.gpu.streams import StreamTable
from otel_gpuflame.correlate.gpu.waits import running_pieces
from otel_gpuflame.correlate.gpu.work import Work, find_lanes
from otel_gpuflame.correlate.waits import WaitMode, find_waits
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure
from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire_gpu import GpuKind

COMMAND_BUFFER_FULL: Final = 6
"""`detail` of an overhead record: CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL >> 16."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Rows of `ATTRIBUTION`: Σ is the time of the overhead records that were placed."""

    rows: AttributionArray
    ambiguous: int
    """Records during launches of several threads: under the longest."""
    without_launch: int
    """Records inside no launch that we know."""
    inside_waits: int
    """Records inside a copy that counts as a wait as a whole."""


def is_full_queue(overhead: ExecutionArray) -> NDArray[np.bool_]:
    """Which records say that a launch was held back, and for how long."""
    is_full: NDArray[np.bool_] = overhead["kind"] == GpuKind.OVERHEAD
    is_full &= overhead["detail"] == COMMAND_BUFFER_FULL
    is_full &= overhead["end_ns"] > overhead["start_ns"]
    return is_full


def explain_backpressure(
    overhead: ExecutionArray, launches: CallArray, work: Work, table: StreamTable
) -> HeldBack:
    """`gpu_wait` for those of `overhead` that say the queue was full, under the launches that were held back.

    `launches`: calls whose `end_ns` is their return, also where no probe saw that. What a launch asked for often runs
    much later, so that it need not be among the executions of `work`.
    Leaf: what ran on the launch's stream meanwhile; [queue full] where nothing did.
    """
    full = overhead.take(np.flatnonzero(is_full_queue(overhead)))
    pairs = contained_pairs(full, launches)
    length = (launches["end_ns"] - launches["start_ns"])[pairs.item]
    order = np.lexsort((pairs.item, -length.astype(np.int64), pairs.owner))
    owner, chosen = pairs.owner[order], pairs.item[order]
    is_first = np.ones(len(owner), np.bool_)
    is_first[1:] = owner[1:] != owner[:-1]
    owner, held = owner[is_first], launches.take(chosen[is_first])
    waits = find_waits(held).duration_ns > 0
    placed = np.flatnonzero(~waits)
    return HeldBack(
        rows=_explained(full.take(owner[placed]), held.take(placed), work, table),
        ambiguous=int((np.bincount(pairs.owner, minlength=len(full)) > 1).sum()),
        without_launch=len(full) - len(owner),
        inside_waits=int(waits.sum()),
    )


def _explained(
    full: ExecutionArray, launches: CallArray, work: Work, table: StreamTable
) -> AttributionArray:
    start, end = full["start_ns"], full["end_ns"]
    streams = streams_of(table, launches)
    lanes = find_lanes(work, launches, streams.context_id, streams.stream_id)
    known = np.flatnonzero(streams.found & (lanes >= 0))
    sure = np.ones(len(known), np.bool_)
    pairs = Pairs(known, lanes[known], launches["start_ns"][known], sure)
    pieces, _ = running_pieces(start, end, pairs, work)
    ran = (pieces.end_ns - pieces.start_ns).astype(np.int64)
    rest = (end - start).astype(np.int64) - sum_by(pieces.interval, ran, len(full))
    still = np.flatnonzero(rest)
    common: dict[str, Any] = {"measure": Measure.GPU_WAIT, "mode": WaitMode.SPIN}
    running = attributions(
        launches,
        pieces.interval,
        time_ns=end[pieces.interval],
        value_ns=ran,
        leaf=Leaf.KERNEL,
        **what_ran(work.rows, pieces.row),
        **common,
    )
    others = attributions(
        launches,
        still,
        time_ns=end[still],
        value_ns=rest[still],
        leaf=Leaf.QUEUE_FULL,
        **common,
    )
    return np.concatenate([running, others])
