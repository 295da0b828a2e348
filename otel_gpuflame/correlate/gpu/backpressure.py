"""Launches that the driver held back because its queue was full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.attribute import attributions, part, what_ran
from otel_gpuflame.correlate.gpu.containment import contained_pairs
from otel_gpuflame.correlate.gpu.dependencies import Pairs
from otel_gpuflame.correlate.gpu.keys import Ranges, TimeKeys, codes_of, sum_by
from otel_gpuflame.correlate.gpu.resolve import streams_of
from otel_gpuflame.correlate.gpu.streams import StreamTable
from otel_gpuflame.correlate.gpu.waits import running_pieces
from otel_gpuflame.correlate.gpu.work import Work, find_lanes
from otel_gpuflame.correlate.waits import WaitMode, find_waits
from otel_gpuflame.events.apis import SUBMISSIONS
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure
from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.events.wire_gpu import GpuKind

COMMAND_BUFFER_FULL: Final = 6
"""`detail` of an overhead record: CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL >> 16."""
_SOON_NS: Final = 1_000_000
"""On an H200 records begin 8 µs after the entry of their launch (median of 1,952)."""
_NEVER: Final = np.uint64(1 << 63)
_THREAD: Final = np.uint64((1 << 32) - 1)
"""What CUPTI has room for of pthread_self()."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Rows of `ATTRIBUTION`: Σ is the time of the overhead records that were placed."""

    rows: AttributionArray
    ambiguous: int
    """Records soon after the entry of launches of several threads: under the last one."""
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


def long_launches(calls: CallArray, returned_ns: NDArray[np.int64], at_least_ns: int) -> CallArray:
    """Launches among `calls` of at least that length, with `end_ns` set to their return.

    `calls`: of the driver library, in any order, of one thread never two at a time. `returned_ns` (n,): what the driver
    recorded, 0 where it recorded nothing. Where nobody saw the return, a launch lasts until the thread's next call at
    most, or goes on.
    """
    threads, some = codes_of(*(calls[name] for name in ("process_start_ns", "tgid", "tid")))
    start = calls["start_ns"]
    order = np.argsort(TimeKeys(len(some), start).pack(threads, start), kind="stable")
    threads, start = threads[order], start[order]
    same_thread = threads[1:] == threads[:-1]
    ends = np.full(len(calls), _NEVER)
    ends[:-1][same_thread] = start[1:][same_thread]
    has_return = (calls["flags"] & CallFlag.RETURNED) != 0
    known = np.where(has_return, calls["end_ns"], returned_ns.astype(np.uint64))[order]
    # A call may be given twice, and its return be known of one of them.
    is_twin = same_thread & (start[1:] == start[:-1])
    known[1:][is_twin] = np.maximum(known[1:], known[:-1])[is_twin]
    ends = np.where(known > 0, known, ends)
    lasts = (ends >= start) & (ends - start >= np.uint64(at_least_ns))
    lasts[:-1] &= ~is_twin
    lasts &= np.isin(calls["kind"], list(SUBMISSIONS))[order]
    rows: CallArray = calls.take(order[lasts])
    rows["end_ns"] = ends[lasts]
    return rows


def explain_backpressure(
    overhead: ExecutionArray, launches: CallArray, work: Work, table: StreamTable
) -> HeldBack:
    """`gpu_wait` for those of `overhead` that say the queue was full, under the launches that were held back.

    `launches`: see `long_launches`. What a launch asked for often runs much later, so that it need not be among the
    executions of `work`. Of several threads in a launch the one was held back that the record names, else the one that
    entered it last.
    Leaf: what ran on the launch's stream meanwhile; [queue full] where nothing did.
    """
    full = overhead.take(np.flatnonzero(is_full_queue(overhead)))
    pairs = _of_named_threads(contained_pairs(full, launches), full, launches)
    after = (full["start_ns"][pairs.owner] - launches["start_ns"][pairs.item]).astype(np.int64)
    order = np.lexsort((pairs.item, after, pairs.owner))
    owner, chosen = pairs.owner[order], pairs.item[order]
    soon = np.bincount(pairs.owner[after <= _SOON_NS], minlength=len(full))
    is_first = np.ones(len(owner), np.bool_)
    is_first[1:] = owner[1:] != owner[:-1]
    owner, held = owner[is_first], launches.take(chosen[is_first])
    waits = find_waits(held).duration_ns > 0
    placed = np.flatnonzero(~waits)
    return HeldBack(
        rows=_explained(full.take(owner[placed]), held.take(placed), work, table),
        ambiguous=int((soon > 1).sum()),
        without_launch=len(full) - len(owner),
        inside_waits=int(waits.sum()),
    )


def _of_named_threads(pairs: Ranges, full: ExecutionArray, launches: CallArray) -> Ranges:
    """Without those whose record names another thread than the launch's. 0: neither is known."""
    named, mine = (
        rows["thread_pointer"][places] & _THREAD
        for rows, places in ((full, pairs.owner), (launches, pairs.item))
    )
    may_be = (named == mine) | (named == 0) | (mine == 0)
    return Ranges(pairs.owner[may_be], pairs.item[may_be])


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
    running = part(
        launches,
        pieces.interval,
        time_ns=end[pieces.interval],
        sampled_ns=launches["start_ns"][pieces.interval],
        value_ns=ran,
        leaf=Leaf.KERNEL,
        **what_ran(work.rows, pieces.row),
        **common,
    )
    others = part(
        launches,
        still,
        time_ns=end[still],
        sampled_ns=launches["start_ns"][still],
        value_ns=rest[still],
        leaf=Leaf.QUEUE_FULL,
        **common,
    )
    return attributions([running, others])
