"""Streams that wait for streams: who waits for one waits for all that it waits for."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import (
    Codes,
    Index,
    TimeKeys,
    Times,
    codes_of,
    expand,
    running_max,
    slices_of,
    stable_order,
)
from otel_gpuflame.correlate.gpu.legacy import Defaults
from otel_gpuflame.correlate.gpu.marks import Marks
from otel_gpuflame.correlate.gpu.work import Work

_MAX_STEPS: Final = 8
"""Of a chain of streams that wait for each other. Later ones are left out."""


class Pairs(NamedTuple):
    """Columns: a wait, a lane, until when work on it counts, and whether the wait surely waits for it."""

    wait: Index
    lane: Codes
    until_ns: Times
    is_sure: NDArray[np.bool_]


def close(pairs: Pairs, since_ns: Times, work: Work, defaults: Defaults, marks: Marks) -> Pairs:
    """`pairs`, and those that follow from stream waits and from the legacy default stream.

    One for each lane at most, or two where one is sure and one is not. `since_ns`: when each wait began. What had
    ended by then is left out where that is known without following it.
    """
    edges = _Edges(marks, len(work.lanes))
    known = fresh = _merged(pairs, len(work.lanes))
    for _ in range(_MAX_STEPS):
        more = chain(edges.follow(fresh, since_ns, work), _implied(fresh, since_ns, work, defaults))
        if not len(more.wait):
            break
        merged = _merged(chain(known, more), len(work.lanes))
        fresh = _added(known, merged, len(work.lanes))
        known = merged
    return known


def chain(*parts: Pairs) -> Pairs:
    """All of them."""
    return Pairs(
        np.concatenate([each.wait for each in parts]),
        np.concatenate([each.lane for each in parts]),
        np.concatenate([each.until_ns for each in parts]),
        np.concatenate([each.is_sure for each in parts]),
    )


def take(pairs: Pairs, rows: Index | NDArray[np.bool_]) -> Pairs:
    """Some of them."""
    return Pairs(pairs.wait[rows], pairs.lane[rows], pairs.until_ns[rows], pairs.is_sure[rows])


def _keys(pairs: Pairs, lanes: int) -> NDArray[np.int64]:
    return (pairs.wait.astype(np.int64) * lanes + pairs.lane) * 2 + pairs.is_sure


def _merged(pairs: Pairs, lanes: int) -> Pairs:
    """The latest of each wait, lane and certainty, sorted by these; unsure ones only where they add to the sure."""
    keys = _keys(pairs, lanes)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    if not len(first):
        return pairs
    until = np.maximum.reduceat(pairs.until_ns[order], first)
    merged = take(pairs, order[first])._replace(until_ns=until)
    adds = np.ones(len(first), np.bool_)
    is_beside = keys[first[1:]] == keys[first[:-1]] + 1
    adds[:-1] = merged.is_sure[:-1] | ~is_beside | (until[:-1] > until[1:])
    return take(merged, adds)


def _added(known: Pairs, merged: Pairs, lanes: int) -> Pairs:
    """Those of `merged` that `known` does not have."""
    mine, keys = _keys(known, lanes), _keys(merged, lanes)
    place = np.minimum(np.searchsorted(mine, keys), len(mine) - 1)
    is_old = (mine[place] == keys) & (known.until_ns[place] >= merged.until_ns)
    return take(merged, ~is_old)


class _Edges:
    """For each lane the lanes that it was told to wait for, and until when by when."""

    __slots__ = ("_code", "_first", "_keys", "_lane", "_packed", "_time_ns", "_until_ns")

    def __init__(self, marks: Marks, lanes: int) -> None:
        codes, some = codes_of(marks.waiting, marks.lane)
        # Codes in the order of the waiting lane, so that each lane's are a range.
        rank = np.empty(len(some), np.int64)
        by_waiting = np.argsort(marks.waiting[some], kind="stable")
        rank[by_waiting] = np.arange(len(some))
        codes = rank[codes]
        self._first = slices_of(marks.waiting[some][by_waiting], lanes)
        self._lane = marks.lane[some][by_waiting]
        self._keys = TimeKeys(len(some), marks.time_ns)
        packed = self._keys.pack(codes, marks.time_ns)
        order = np.argsort(packed, kind="stable")
        self._packed, self._code = packed[order], codes[order]
        self._time_ns = marks.time_ns[order]
        self._until_ns = running_max(codes[order], marks.until_ns[order])

    def follow(self, pairs: Pairs, since_ns: Times, work: Work) -> Pairs:
        """Pairs one step on."""
        step = expand(self._first[pairs.lane], self._first[pairs.lane + 1])
        if not len(step.owner):
            return take(pairs, step.owner)
        code = step.item.astype(np.int64)
        place = self._keys.find(self._packed, code, pairs.until_ns[step.owner], "right") - 1
        # What the lane was told before work that has ended it no longer waits for.
        settled_ns = _settled(pairs, since_ns, work)[step.owner]
        holds = (place >= 0) & (self._code[place] == code) & (self._time_ns[place] >= settled_ns)
        owner, place, lane = step.owner[holds], place[holds], self._lane[step.item[holds]]
        return Pairs(pairs.wait[owner], lane, self._until_ns[place], pairs.is_sure[owner])


def _settled(pairs: Pairs, since_ns: Times, work: Work) -> Times:
    """When the last work on each pair's lane was asked for that had ended when the wait began."""
    last = work.keys.find(work.by_reach, pairs.lane, since_ns[pairs.wait], "right") - 1
    has_ended = last >= work.first[pairs.lane]
    return np.where(has_ended, work.entry_ns[last], np.uint64(0))


def _implied(pairs: Pairs, since_ns: Times, work: Work, defaults: Defaults) -> Pairs:
    """What the legacy default stream adds; never sure, as it is not known which streams are independent."""
    return chain(_to_legacy(pairs, since_ns, work, defaults), _from_legacy(pairs, defaults))


def _to_legacy(pairs: Pairs, since_ns: Times, work: Work, defaults: Defaults) -> Pairs:
    """The last work on a dependent lane waits for what the default stream had to do before it."""
    pairs = take(pairs, defaults.is_dependent[pairs.lane])
    last = work.submitted(pairs.lane, pairs.until_ns) - 1
    goes_on = last >= work.first[pairs.lane]
    goes_on &= work.reach_ns[last] > since_ns[pairs.wait]
    pairs, last = take(pairs, goes_on), last[goes_on]
    not_sure = np.zeros(len(last), np.bool_)
    return Pairs(pairs.wait, defaults.legacy[pairs.lane], work.entry_ns[last], not_sure)


def _from_legacy(pairs: Pairs, defaults: Defaults) -> Pairs:
    """Whatever the default stream is asked for waits for all dependent lanes."""
    pairs = take(pairs, defaults.is_legacy[pairs.lane])
    dependent = np.flatnonzero(defaults.is_dependent)
    order = dependent[stable_order(defaults.legacy[dependent])]
    first = slices_of(defaults.legacy[order], len(defaults.legacy))
    step = expand(first[pairs.lane], first[pairs.lane + 1])
    pairs, not_sure = take(pairs, step.owner), np.zeros(len(step.owner), np.bool_)
    return Pairs(pairs.wait, order[step.item].astype(np.int64), pairs.until_ns, not_sure)
