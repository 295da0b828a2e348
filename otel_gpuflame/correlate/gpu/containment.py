"""Which call of which thread an interval lies inside, where the record does not say the thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import (
    Ranges,
    TimeKeys,
    codes_of,
    expand,
    shared_codes,
    slices_of,
)


def contained_pairs(inner: NDArray[np.void], outer: NDArray[np.void]) -> Ranges:
    """Pairs (row of `inner`, row of `outer`) of one process where `inner` lies inside `outer`.

    Rows of `outer` with one `tid` do not overlap, or are equal. A pair for each thread that was inside
    such a call, by row of `inner`.
    """
    none = np.zeros(0, np.intp)
    if not len(inner) or not len(outer):
        return Ranges(none, none)
    threads, thread_row = codes_of(*(outer[name] for name in ("process_start_ns", "tgid", "tid")))
    start, end = outer["start_ns"], outer["end_ns"]
    keys = TimeKeys(len(thread_row), start)
    packed = keys.pack(threads, start)
    order = np.argsort(packed, kind="stable")
    packed = packed[order]
    pair = _process_pairs(inner, outer[thread_row])
    times: Any = inner["start_ns"][pair.owner]
    place = keys.find(packed, pair.item.astype(np.int64), times, "right") - 1
    candidate = order[np.maximum(place, 0)]
    inside = (place >= 0) & (threads[candidate] == pair.item)
    inside &= end[candidate] >= inner["end_ns"][pair.owner]
    return Ranges(pair.owner[inside], candidate[inside])


def _process_pairs(inner: NDArray[np.void], threads: NDArray[np.void]) -> Ranges:
    """Pairs (row of `inner`, thread of its process)."""
    names = ("process_start_ns", "tgid")
    asked, mine, count = shared_codes(
        [inner[name] for name in names], [threads[name] for name in names]
    )
    order = np.argsort(mine, kind="stable")
    places = slices_of(mine[order], count)
    pairs = expand(places[asked], places[asked + 1])
    return Ranges(pairs.owner, order[pairs.item])
