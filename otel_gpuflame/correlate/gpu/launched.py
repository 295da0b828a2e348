"""Idle time after the launch of what ended it: the thread had done its part, whatever it did next.

Kernels that were launched early, and nodes of graphs, are a little apart all the same, and work may wait for another
device.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.attribute import Part, part
from otel_gpuflame.correlate.gpu.coverage import GapParts
from otel_gpuflame.correlate.gpu.keys import Codes, Index, Times, codes_of
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.correlate.gpu.timeline import Gaps
from otel_gpuflame.events.attributions import Leaf, Measure, NoLaunch
from otel_gpuflame.events.wire import CallFlag

MAX_GAPS: Final = 10_000.0
"""Of a column of 16 bits. A sample stands for 20 ms: gaps would be of 2 µs, which only few samples meet."""
_IS_AHEAD_NS: Final = np.uint64(50_000)
"""From a launch's entry to its start on an idle H200 4 to 5 µs pass, on slower hosts several times as long: a thread
that launches one kernel after the other, too slowly, is never further ahead of its device."""
_POOL: Final = ("device", "tid", "tgid", "process_start_ns")


class Cut(NamedTuple):
    """Gaps cut where the launch was over that ended each. `known`: parts before that; `rows`: what came after it."""

    parts: GapParts
    known: Index
    rows: Part
    after_ns: int
    """Σ of `rows`."""


def cut_at_launches(gaps: Gaps, parts: GapParts, known: Index, executions: JoinedArray) -> Cut:
    """Cut those `known` of `parts`, in which the device was idle until something was launched.

    A launch lasts until its return where that is known, and as long as launches may take.
    """
    ended_by = gaps.ended_by[parts.gap[known]]
    start, end = parts.start_ns[known], parts.end_ns[known]
    turn = np.clip(_over_ns(executions, ended_by, end), start, end)
    ends = parts.end_ns.copy()
    ends[known] = turn
    after = np.flatnonzero(end > turn)
    by = ended_by[after]
    pool, _ = codes_of(*(executions[name][by] for name in _POOL))
    rows = under_launches(
        executions,
        by,
        pool,
        leaf=Leaf.LAUNCH_LATENCY,
        time_ns=turn[after],
        value_ns=(end - turn)[after].astype(np.int64),
        gaps=np.zeros(len(after)),
    )
    return Cut(parts._replace(end_ns=ends), known[turn > start], rows, int((end - turn).sum()))


def under_launches(
    executions: JoinedArray,
    by: Index,
    pool: Codes,
    *,
    leaf: Leaf,
    time_ns: Times,
    value_ns: NDArray[np.int64],
    gaps: NDArray[np.float64],
) -> Part:
    """Idle time under the launches of the executions `by` that ended it. `pool`: their threads and devices.

    `gaps`: of how many each is all there was.
    """
    # Between the nodes of a graph there are gaps by the hundred, of one launch: one row for all.
    launched = executions["launch_start_ns"][by]
    is_new = np.ones(len(by), np.bool_)
    is_new[1:] = (launched[1:] != launched[:-1]) | (pool[1:] != pool[:-1]) | (launched[1:] == 0)
    first = np.flatnonzero(is_new)
    if len(first):
        value_ns, gaps = np.add.reduceat(value_ns, first), np.add.reduceat(gaps, first)
    by = by[first]
    return part(
        executions,
        by,
        time_ns=time_ns[first],
        value_ns=value_ns,
        gaps=np.minimum(gaps, MAX_GAPS),
        measure=Measure.GPU_IDLE,
        leaf=leaf,
        no_launch=executions["no_launch"][by],
        device=executions["device"][by],
    )


def _over_ns(executions: JoinedArray, by: Index, otherwise_ns: Times) -> Times:
    """(n,) by when the launch of each of `by` was over; `otherwise_ns` where it is not known."""
    over_ns = executions["launch_start_ns"][by] + _IS_AHEAD_NS
    has_return = (executions["flags"][by] & CallFlag.RETURNED) != 0
    over_ns = np.where(has_return, np.maximum(over_ns, executions["launch_end_ns"][by]), over_ns)
    return np.where(executions["no_launch"][by] == NoLaunch.NONE, over_ns, otherwise_ns)
