"""What each thread did when: off the CPU, in the driver of the GPU, in the driver's library; one thing at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import Codes, Index, Ranges, TimeKeys, Times, expand
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind

_LAST_CALL: Final = Kind.FREE
"""Kinds up to this are calls of the driver's library."""
_WAITING: Final = (Kind.WAIT, Kind.COPY, Kind.FREE)
"""Calls in which a thread may wait for the device: whether it leaves the CPU for that is a setting of the context."""


class Activities(NamedTuple):
    """Intervals that do not overlap, by thread and time; `row` is the call in what they were made from."""

    thread: Codes
    start_ns: Times
    end_ns: Times
    row: Index


def find_activities(calls: CallArray, threads: Codes, count: int) -> Activities:
    """From calls with a duration; `threads` has the thread of each, as a number below `count`.

    Inner goes before outer: a thread off the CPU in a system call in a launch is off the CPU. In a call that waits
    for the device it waits, on the CPU or off it.
    """
    start, end, kinds = calls["start_ns"], calls["end_ns"], calls["kind"]
    lasts = ((calls["flags"] & CallFlag.RETURNED) != 0) & (end > start)
    layers = [
        np.flatnonzero(lasts & which)
        for which in (
            np.isin(kinds, _WAITING),
            kinds == Kind.OFF_CPU,
            kinds == Kind.DRIVER,
            kinds <= _LAST_CALL,
        )
    ]
    rows = np.concatenate(layers)
    keys = TimeKeys(count, start[rows], end[rows])
    bounds = np.sort(
        np.concatenate([keys.pack(threads[rows], start[rows]), keys.pack(threads[rows], end[rows])])
    )
    if not len(bounds):
        none = np.zeros(0, np.intp)
        return Activities(none, bounds.astype(np.uint64), bounds.astype(np.uint64), none)
    bounds = bounds[np.append(bounds[1:] != bounds[:-1], True)[: len(bounds)]]
    chosen = np.full(len(bounds), -1, np.intp)
    for layer in layers:
        packed = keys.pack(threads[layer], start[layer])
        order = np.argsort(packed, kind="stable")
        place = np.searchsorted(packed[order], bounds, "right") - 1
        row = layer[order][place] if len(layer) else chosen
        ends = keys.pack(threads[row], end[row]) if len(layer) else bounds
        # The end of another thread's last call lies before this bound as well.
        active = (place >= 0) & (ends > bounds) & (chosen < 0)
        chosen[active] = row[active]
    real = np.flatnonzero(chosen[:-1] >= 0)
    row = chosen[real]
    return Activities(
        threads[row],
        keys.unpack(threads[row], bounds[real]),
        keys.unpack(threads[row], bounds[real + 1]),
        row,
    )


def overlaps(
    activities: Activities, threads: Codes, start_ns: Times, end_ns: Times, count: int
) -> tuple[Ranges, NDArray[np.int64]]:
    """Pairs (interval of a thread, activity) that overlap, and by how much."""
    if not len(activities.row):
        none = np.zeros(0, np.intp)
        return Ranges(none, none), np.zeros(0, np.int64)
    keys = TimeKeys(count, activities.start_ns, activities.end_ns)
    first = keys.find(keys.pack(activities.thread, activities.end_ns), threads, start_ns, "right")
    past = keys.find(keys.pack(activities.thread, activities.start_ns), threads, end_ns, "left")
    pairs = expand(first, past)
    begin = np.maximum(start_ns[pairs.owner], activities.start_ns[pairs.item])
    until = np.minimum(end_ns[pairs.owner], activities.end_ns[pairs.item])
    return pairs, (until - begin).astype(np.int64)


def is_active(
    activities: Activities, threads: Codes, at_ns: Times, count: int
) -> NDArray[np.bool_]:
    """Whether each thread was in one of its activities at a time."""
    if not len(activities.thread):
        return np.zeros(len(threads), np.bool_)
    keys = TimeKeys(count, activities.start_ns)
    packed = keys.pack(activities.thread, activities.start_ns)
    place = np.maximum(keys.find(packed, threads, at_ns, "right") - 1, 0)
    mine = (activities.thread[place] == threads) & (activities.start_ns[place] <= at_ns)
    active: NDArray[np.bool_] = mine & (activities.end_ns[place] > at_ns)
    return active
