"""What each wait waited for, nanosecond by nanosecond."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.attribute import Part, attributions, part, what_ran
from otel_gpuflame.correlate.gpu.dependencies import Pairs
from otel_gpuflame.correlate.gpu.keys import Index, Times, expand, running_max, sum_by
from otel_gpuflame.correlate.gpu.scopes import Scopes
from otel_gpuflame.correlate.gpu.work import Work
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure
from otel_gpuflame.events.records import CallArray


class Pieces(NamedTuple):
    """Parts of intervals in which work ran that they waited for, in order; `row` is the execution in `Work.rows`."""

    interval: Index
    row: Index
    start_ns: Times
    end_ns: Times


def running_pieces(
    start_ns: Times, end_ns: Times, pairs: Pairs, work: Work
) -> tuple[Pieces, Times]:
    """Pieces of each interval, and until when something ran that it waited for (its start, where nothing did).

    Of several that ran at once the one that ends last; then the one that began first.
    """
    first = work.keys.find(work.by_reach, pairs.lane, start_ns[pairs.wait], "right")
    begun = work.keys.find(work.by_start, pairs.lane, end_ns[pairs.wait], "left")
    asked = work.submitted(pairs.lane, pairs.until_ns)
    last = start_ns.copy()
    some = np.flatnonzero(asked > first)
    of = pairs.wait[some]
    np.maximum.at(last, of, np.minimum(work.reach_ns[asked[some] - 1], end_ns[of]))
    pair, place = expand(first, np.minimum(begun, asked))
    leads = work.end_ns[place] == work.reach_ns[place]
    pair, place = pair[leads], place[leads]
    interval = pairs.wait[pair]
    begin, end = work.start_ns[place], work.end_ns[place]
    order = np.lexsort((-end.astype(np.int64), begin, interval))
    interval, place, begin, end = (each[order] for each in (interval, place, begin, end))
    # Who ends later than all that began before runs last from where it begins.
    reach = running_max(interval.astype(np.int64), end)
    is_leader = np.ones(len(order), np.bool_)
    is_leader[1:] = (interval[1:] != interval[:-1]) | (reach[1:] > reach[:-1])
    interval, place, begin, end = (each[is_leader] for each in (interval, place, begin, end))
    until = np.minimum(end, end_ns[interval])
    same = interval[1:] == interval[:-1]
    until[:-1] = np.where(same, np.minimum(until[:-1], begin[1:]), until[:-1])
    begin = np.maximum(begin, start_ns[interval])
    real = until > begin
    return Pieces(interval[real], work.row[place[real]], begin[real], until[real]), last


def explain_waits(
    waits: CallArray, work: Work, scopes: Scopes, sampled: NDArray[np.bool_]
) -> AttributionArray:
    """Attributions of `waits`, calls that waited (`correlate.waits.find_waits`). Σ of each is its duration.

    `sampled`: which of them are seen because they began in a window.
    """
    sampled_ns = np.where(sampled, waits["start_ns"], 0)
    mode = find_waits(waits).mode
    start, end = waits["start_ns"], waits["end_ns"]
    pieces, last = running_pieces(start, end, scopes.pairs, work)
    ran = pieces.end_ns - pieces.start_ns
    busy = sum_by(pieces.interval, ran.astype(np.int64), len(waits))
    idle = (last - start).astype(np.int64) - busy
    after = (end - last).astype(np.int64)
    return attributions(
        [
            _running(waits, mode, sampled_ns, pieces, work),
            _others(waits, mode, sampled_ns, idle, Leaf.GPU_IDLE),
            _others(waits, mode, sampled_ns, after, Leaf.DRIVER),
        ]
    )


def _running(
    waits: CallArray, mode: NDArray[np.uint8], sampled_ns: Times, pieces: Pieces, work: Work
) -> Part:
    return part(
        waits,
        pieces.interval,
        time_ns=waits["end_ns"][pieces.interval],
        value_ns=pieces.end_ns - pieces.start_ns,
        measure=Measure.GPU_WAIT,
        leaf=Leaf.KERNEL,
        mode=mode[pieces.interval],
        sampled_ns=sampled_ns[pieces.interval],
        **what_ran(work.rows, pieces.row),
    )


def _others(
    waits: CallArray,
    mode: NDArray[np.uint8],
    sampled_ns: Times,
    value_ns: NDArray[np.int64],
    leaf: Leaf,
) -> Part:
    chosen = np.flatnonzero(value_ns)
    return part(
        waits,
        chosen,
        time_ns=waits["end_ns"][chosen],
        value_ns=value_ns[chosen],
        measure=Measure.GPU_WAIT,
        leaf=leaf,
        mode=mode[chosen],
        sampled_ns=sampled_ns[chosen],
    )
