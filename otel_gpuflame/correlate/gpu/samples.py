"""Idle time by the CPU samples of the threads that ended it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.activities import is_active
from otel_gpuflame.correlate.gpu.attribute import Part, part
from otel_gpuflame.correlate.gpu.keys import (
    Codes,
    Index,
    TimeKeys,
    Times,
    expand,
    shared_codes,
    slices_of,
    split_exactly,
    sum_by,
)
from otel_gpuflame.correlate.gpu.launched import MAX_GAPS, under_launches
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.correlate.gpu.spans import THREAD, Did, Spans
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

SAMPLE_MAX_NS: Final = 2 * 1_000_000_000 // CPU_SAMPLES_HZ
"""A sample stands for the CPU time since the one before: one period on average, up to two where gaps fall badly."""
_CARRIED_FOR_NS: Final = np.uint64(1_000_000_000)
"""Steps of 10 ms meet samples every 10.1 ms at the same place for 0.1 s, and come round to it after 1 s."""
_MAX_CARRIED: Final = 1 << 14


class Carried(NamedTuple):
    """Samples in gaps that were shorter than what each may stand for: columns sample, device, and what is left."""

    calls: CallArray
    device: NDArray[np.uint32]
    left_ns: NDArray[np.int64]


NOTHING: Final = Carried(np.zeros(0, wire.CALL), np.zeros(0, np.uint32), np.zeros(0, np.int64))


class _Pools(NamedTuple):
    """Gaps of one thread on one device: columns over these. `left_ns`: what is not explained yet."""

    first: Index
    """Of the spans."""
    device: NDArray[np.uint32]
    thread: Codes
    left_ns: NDArray[np.int64]


def told_by_samples(
    spans: Spans, rest_ns: NDArray[np.int64], did: Did, executions: JoinedArray, carried: Carried
) -> tuple[list[Part], Carried]:
    """Rows for what is left of each span (`rest_ns`), and what its samples may still stand for.

    All that is left of a thread's gaps on a device is spread evenly over its samples in them, up to `SAMPLE_MAX_NS`
    each; then over those of the second before, of gaps as short as that, that had not been used up. The rest is
    [no sample].
    """
    count = int(spans.pool[-1]) + 1 if len(spans.pool) else 0
    first = slices_of(spans.pool, count)[:-1]
    left = sum_by(spans.pool, rest_ns, count)
    pools = _Pools(first, spans.device[first], spans.thread[first], left)
    told, fresh, left = _by_fresh(spans, pools, did)
    used, still, left = _by_carried(spans, pools._replace(left_ns=left), executions, carried)
    rest = _by_launch(spans, left, rest_ns, executions)
    last_ns = spans.end_ns.max(initial=0)
    return [told, used, rest], _kept(fresh, still, last_ns)


def gaps_told(value_ns: NDArray[np.int64], spans: Spans, span: Index) -> NDArray[np.float64]:
    """Of how many gaps as long as `span` so much is all there was."""
    length_ns = (spans.end_ns[span] - spans.start_ns[span]).astype(np.int64)
    return np.minimum(value_ns / np.maximum(length_ns, 1), MAX_GAPS)


def _by_fresh(spans: Spans, pools: _Pools, did: Did) -> tuple[Part, Carried, NDArray[np.int64]]:
    """Rows for samples in the spans themselves, what is left of these, and of each pool."""
    row = np.flatnonzero(did.calls["kind"] == Kind.CPU_SAMPLE)
    at_ns = did.calls["start_ns"]
    row = row[~is_active(did.activities, did.thread[row], at_ns[row], did.threads)]
    sample, span = _samples_in(spans, pools, did.thread[row], at_ns[row], did.threads)
    row, pool = row[sample], spans.pool[span]
    ones = np.ones(len(row), np.int64)
    told_ns = np.minimum(pools.left_ns, sum_by(pool, ones, len(pools.first)) * SAMPLE_MAX_NS)
    each = split_exactly(told_ns, pool, ones)
    told = np.flatnonzero(each)
    rows = _on_cpu(
        did.calls,
        row[told],
        time_ns=at_ns[row[told]],
        value_ns=each[told],
        device=pools.device[pool[told]],
        gaps=gaps_told(each[told], spans, span[told]),
    )
    # A longer gap has samples of its own: what they say of it, a pause that comes once, is not said of those after it.
    length_ns = (spans.end_ns[span] - spans.start_ns[span]).astype(np.int64)
    left_ns = np.where(length_ns < SAMPLE_MAX_NS, SAMPLE_MAX_NS - each, 0)
    carried = Carried(did.calls.take(row), pools.device[pool], left_ns)
    return rows, carried, pools.left_ns - told_ns


def _by_carried(
    spans: Spans, pools: _Pools, executions: JoinedArray, carried: Carried
) -> tuple[Part, Carried, NDArray[np.int64]]:
    """Rows for samples of before, what is left of these, and of each pool."""
    launch = spans.ended_by[pools.first]
    mine, asked, count = shared_codes(
        [*(executions[name][launch] for name in THREAD), pools.device],
        [*(carried.calls[name] for name in THREAD), carried.device],
    )
    pool_of = np.full(count, -1, np.intp)
    # Where no launch is known, nor is the thread.
    known = np.flatnonzero(executions["no_launch"][launch] == 0)
    pool_of[mine[known]] = known
    row = np.flatnonzero(pool_of[asked] >= 0)
    pool = pool_of[asked[row]]
    may_ns = carried.left_ns[row]
    told_ns = np.minimum(pools.left_ns, sum_by(pool, may_ns, len(pools.first)))
    each = split_exactly(told_ns, pool, may_ns)
    told = np.flatnonzero(each)
    first = pools.first[pool[told]]
    rows = _on_cpu(
        carried.calls,
        row[told],
        time_ns=spans.start_ns[first],
        value_ns=each[told],
        device=carried.device[row[told]],
        gaps=gaps_told(each[told], spans, first),
    )
    left_ns = carried.left_ns.copy()
    left_ns[row] -= each
    return rows, carried._replace(left_ns=left_ns), pools.left_ns - told_ns


def _by_launch(
    spans: Spans, left_ns: NDArray[np.int64], rest_ns: NDArray[np.int64], executions: JoinedArray
) -> Part:
    """Rows for what no sample stands for, in proportion to what was left of each span."""
    value = split_exactly(left_ns, spans.pool, rest_ns)
    still = np.flatnonzero(value)
    return under_launches(
        executions,
        spans.ended_by[still],
        spans.pool[still],
        leaf=Leaf.NO_SAMPLE,
        time_ns=spans.start_ns[still],
        value_ns=value[still],
        gaps=gaps_told(value[still], spans, still),
    )


def _on_cpu(calls: CallArray, row: Index, **columns: Any) -> Part:
    return part(calls, row, measure=Measure.GPU_IDLE, leaf=Leaf.ON_CPU, **columns)


def _kept(fresh: Carried, before: Carried, last_ns: np.uint64) -> Carried:
    """What can still be used: the newest, none of them older than a second."""
    calls = np.concatenate([before.calls, fresh.calls])
    device = np.concatenate([before.device, fresh.device])
    left_ns = np.concatenate([before.left_ns, fresh.left_ns])
    young = calls["start_ns"] + _CARRIED_FOR_NS >= last_ns
    keep = np.flatnonzero(young & (left_ns > 0))[-_MAX_CARRIED:]
    return Carried(calls.take(keep), device[keep], left_ns[keep])


def _samples_in(
    spans: Spans, pools: _Pools, threads: Codes, at_ns: Times, count: int
) -> tuple[Index, Index]:
    """Pairs (sample, idle span of its thread that it lies in): one for each device."""
    if not len(spans.pool):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    order = np.argsort(pools.thread, kind="stable")
    slices = slices_of(pools.thread[order], count)
    pairs = expand(slices[threads], slices[threads + 1])
    pool = order[pairs.item].astype(np.int64)
    keys = TimeKeys(len(pools.first), spans.start_ns)
    at = at_ns[pairs.owner]
    place = keys.find(keys.pack(spans.pool, spans.start_ns), pool, at, "right") - 1
    span = np.maximum(place, 0)
    inside = (place >= 0) & (spans.pool[span] == pool) & (spans.end_ns[span] > at)
    return pairs.owner[inside], span[inside]
