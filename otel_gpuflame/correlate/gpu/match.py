"""Who belongs to whom: calls to records of the driver by thread and time, executions to those by id and time.

Columns in, positions out; nothing here knows of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
Positions: TypeAlias = NDArray[np.intp]
"""Indexes into another column, -1 where there is no partner."""

_TIME_BITS: Final = 43
"""2.4 hours: nothing that is compared here lies further apart, but for wrong times."""
_RADIX_FROM: Final = 1 << 16
_SAMPLED: Final = 16
_FEW: Final = 8
"""Where fewer than one in so many is asked for, it is cheaper to sort what is asked for than all that there is."""
_DENSE: Final = 8
"""Up to so many possible ids for each that occurs a table is faster than a search: CUPTI counts other calls too."""


class Claims(NamedTuple):
    """Of each record the call that it was made in; and the last call of each thread."""

    call: Positions
    last: Positions


def claim(
    records: tuple[Keys, Times], calls: tuple[Keys, Times], until_ns: Times, is_free: Mask
) -> Claims:
    """For each record of the driver (thread, begin) the call (thread, entry) that it was made in.

    That is the last call of its thread whose entry is not after the record's begin, if it was not over by then
    (`until_ns`), and `is_free`. Of several records in one call the first has it.
    """
    found = np.full(len(records[0]), -1, np.intp)
    if not len(calls[0]):
        return Claims(found, np.zeros(0, np.intp))
    threads = _distinct(calls[0])
    base_ns = int(calls[1].min())
    call_number = _numbers(threads, calls[0])
    call_places = _composite(call_number, len(threads), calls[1], base_ns)
    call_order, call_places = _sorted(call_number, call_places, len(threads))
    ends = np.flatnonzero((call_places[1:] ^ call_places[:-1]) >> _TIME_BITS)
    claims = Claims(found, call_order[np.append(ends, len(call_order) - 1)])
    if not len(found):
        return claims
    record_number = _numbers(threads, records[0])
    is_known = threads[record_number] == records[0]
    places = _composite(record_number, len(threads), records[1], base_ns)
    order, places = _sorted(record_number, places, len(threads))
    position = np.searchsorted(call_places, places, side="right") - 1
    call = call_order[position]
    begin_ns = records[1][order]
    is_inside = is_known[order] & (position >= 0) & is_free[call]
    # Of the same thread; and not before all calls, whose place is that of the first.
    is_inside &= (call_places[position] ^ places) >> _TIME_BITS == 0
    is_inside &= (begin_ns >= base_ns) & (begin_ns <= until_ns[call])
    inside = np.flatnonzero(is_inside)
    candidates = position[inside]
    first = np.ones(len(inside), np.bool_)
    first[1:] = candidates[1:] != candidates[:-1]
    found[order[inside[first]]] = call[inside[first]]
    return claims


def launches_of(
    executions: tuple[Keys, Times], launches: tuple[Keys, Times], preferred: Mask
) -> Positions:
    """For each execution (id, start) the latest launch (id, begin) with its id that had begun by its start.

    Of launches with equal id and time a `preferred` one.
    """
    if not len(launches[0]) or not len(executions[0]):
        return np.full(len(executions[0]), -1, np.intp)
    found = _by_unique_ids(executions[0], launches[0])
    if found is None:
        return _by_id_and_time(executions, launches, preferred)
    return np.where((found >= 0) & (launches[1][found] <= executions[1]), found, -1)


def order_by(number: NDArray[np.integer], times_ns: Times, ends_ns: Times) -> Positions | None:
    """The order by number, time and end; None where they have it already."""
    same = number[1:] == number[:-1]
    later = (times_ns[1:] > times_ns[:-1]) | (
        (times_ns[1:] == times_ns[:-1]) & (ends_ns[1:] >= ends_ns[:-1])
    )
    if bool(((number[1:] > number[:-1]) | (same & later)).all()):
        return None
    return np.lexsort((ends_ns, times_ns, number))


def repeated(columns: Sequence[NDArray[np.generic]], times_ns: NDArray[np.generic]) -> Mask:
    """Which rows equal an earlier one in all `columns` and `times_ns`.

    Equal times stand side by side, as in rows that are sorted by it: nothing else is looked at.
    """
    again = np.zeros(len(times_ns), np.bool_)
    tied = np.flatnonzero(times_ns[1:] == times_ns[:-1])
    if not len(tied):
        return again
    places = np.union1d(tied, tied + 1)
    order = places[np.lexsort((places, *(c[places] for c in columns), times_ns[places]))]
    same = np.ones(len(order) - 1, np.bool_)
    for column in (times_ns, *columns):
        same &= column[order[1:]] == column[order[:-1]]
    again[order[1:][same]] = True
    return again


def contains(values: Keys, among: Keys) -> Mask:
    """Which of `values` occur in `among`."""
    if not len(among) or not len(values):
        return np.zeros(len(values), np.bool_)
    found = np.zeros(len(values), np.bool_)
    inside = np.flatnonzero((values >= among.min()) & (values <= among.max()))
    if len(inside) > len(among) // _FEW:
        ordered = np.sort(among)
        found[inside] = ordered[np.searchsorted(ordered, values[inside])] == values[inside]
    elif len(inside):
        order = np.argsort(values[inside])
        ordered = values[inside[order]]
        place = np.minimum(np.searchsorted(ordered, among), len(ordered) - 1)
        occurs = np.zeros(len(ordered), np.bool_)
        occurs[place[ordered[place] == among]] = True
        # Of equal values only the first was found.
        found[inside[order]] = occurs[np.searchsorted(ordered, ordered)]
    return found


def _distinct(keys: Keys) -> Keys:
    """The distinct keys, sorted: mostly few, that all occur among some of the rows."""
    some = np.unique(keys[::_SAMPLED])
    return some if bool((some[_numbers(some, keys)] == keys).all()) else np.unique(keys)


def _numbers(distinct: Keys, keys: Keys) -> Positions:
    """(n,) the place of each key among sorted `distinct` ones; some place, where it is not among them."""
    if len(distinct) == 1:
        return np.zeros(len(keys), np.intp)
    return np.minimum(np.searchsorted(distinct, keys), len(distinct) - 1)


def _composite(number: Positions, distinct: int, times_ns: Times, base_ns: int) -> Times:
    """One word that sorts by number, then time. Times out of range are put at its ends: they belong to nothing."""
    offset: Times = times_ns - base_ns
    np.minimum(np.maximum(offset, 0, out=offset), (1 << _TIME_BITS) - 1, out=offset)
    return offset if distinct == 1 else (number.astype(np.int64) << _TIME_BITS) | offset


def _sorted(
    number: Positions, places: NDArray[np.int64], distinct: int
) -> tuple[Positions, NDArray[np.int64]]:
    """An order, and the values in it. One thread's rows come in order: then there is little to sort."""
    if bool((places[1:] >= places[:-1]).all()):
        return np.arange(len(places)), places
    if distinct < _RADIX_FROM:
        # numpy sorts 16-bit numbers stably by radix, 10 times faster than wider ones.
        order = np.argsort(number.astype(np.uint16), kind="stable")
        ordered = places[order]
        if bool((ordered[1:] >= ordered[:-1]).all()):
            return order, ordered
    order = np.argsort(places)
    return order, places[order]


def _by_unique_ids(wanted: Keys, ids: Keys) -> Positions | None:
    """Positions of `wanted` in `ids`; None where an id occurs twice."""
    low, high = int(ids.min()), int(ids.max())
    if high - low <= _DENSE * len(ids):
        table = np.full(high - low + 2, -1, np.intp)
        table[(ids - np.uint64(low)).astype(np.intp)] = np.arange(len(ids))
        if np.count_nonzero(table >= 0) != len(ids):
            return None
        # Ids out of range meet the last entry, which is nobody's.
        inside = (wanted >= low) & (wanted <= high)
        return table[np.where(inside, wanted - np.uint64(low), high - low + 1).astype(np.intp)]
    order, ordered = np.argsort(ids), np.sort(ids)
    if bool((ordered[1:] == ordered[:-1]).any()):
        return None
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[place] == wanted, order[place], -1)


def _by_id_and_time(
    executions: tuple[Keys, Times], launches: tuple[Keys, Times], preferred: Mask
) -> Positions:
    """The same where ids come again: both in one order, each execution after the launches before it."""
    count = len(launches[0])
    ids = np.concatenate((launches[0], executions[0]))
    times_ns = np.concatenate((launches[1], executions[1]))
    rank = np.concatenate((preferred.astype(np.int8), np.full(len(executions[0]), 2, np.int8)))
    order = np.lexsort((rank, times_ns, ids))
    is_launch = order < count
    last = np.maximum.accumulate(np.where(is_launch, np.arange(len(order)), -1))
    latest = order[last]
    found = np.full(len(executions[0]), -1, np.intp)
    has = ~is_launch & (last >= 0) & (ids[latest] == ids[order])
    found[order[has] - count] = latest[has]
    return found
