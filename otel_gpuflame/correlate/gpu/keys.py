"""Joins over columns: what equals what, the last before a time, what lies inside what. All exact, all vectorised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
"""Small numbers from 0 that stand for keys."""
Times = NDArray[np.uint64]
Index = NDArray[np.intp]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that every bit of a word counts."""
_LIMIT: Final = 1 << 62
_SAMPLE: Final = 1 << 12
_TABLE: Final = 1 << 16
"""So many numbers are looked up in a table: 0.5 MB, which the caches have room for."""
_RADIX_FROM: Final = 1 << 16
"""numpy sorts 16-bit numbers stably by radix, 10 times faster than wider ones."""


def codes_of(*columns: NDArray[np.generic]) -> tuple[Codes, Index]:
    """(n,) a code for each row so that equal rows have equal codes, and (k,) one row for each code."""
    count = len(columns[0])
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.intp)
    words: list[_Word] = []
    for column in columns:
        values = column.astype(np.uint64, copy=False)
        low, high = int(values.min()), int(values.max())
        # Mostly all rows are of one process: what is the same everywhere tells none apart.
        if low < high:
            words.append(_Word(values, low, high - low + 1))
    if not words:
        return np.zeros(count, np.int64), np.zeros(1, np.intp)
    span = math.prod(word.span for word in words)
    if span < _LIMIT:
        return _few(_packed(words), span) if span <= _TABLE else _distinct(_packed(words))
    hashed = np.zeros(count, np.uint64)
    for word in words:
        hashed = (hashed ^ (hashed >> np.uint64(29)) ^ word.values) * _MULTIPLIER
    codes, some = _distinct(hashed)
    # Handles come from programs, who could make two keys collide: then the slow way.
    if all(np.array_equal(word.values, word.values[some[codes]]) for word in words):
        return codes, some
    return _codes_by_sorting([word.values for word in words])


class _Word(NamedTuple):
    """A column, its least value, and how many there are from that to its largest."""

    values: NDArray[np.uint64]
    low: int
    span: int


def _packed(words: Sequence[_Word]) -> NDArray[np.uint64]:
    """One number for each row, below the product of all spans, that is as different as the rows are."""
    packed = words[0].values - np.uint64(words[0].low)
    for word in words[1:]:
        packed = packed * np.uint64(word.span) + (word.values - np.uint64(word.low))
    return packed


def _few(packed: NDArray[np.uint64], span: int) -> tuple[Codes, Index]:
    """The same as `_distinct` of numbers below `span`, by a table."""
    places = packed.astype(np.intp)
    row = np.full(span, -1, np.intp)
    row[places] = np.arange(len(places))
    present = np.flatnonzero(row >= 0)
    code = np.zeros(span, np.int64)
    code[present] = np.arange(len(present))
    return code[places], row[present]


def _distinct(words: NDArray[np.uint64]) -> tuple[Codes, Index]:
    """A code for each word, and one row for each code."""
    distinct = np.unique(words[:: max(len(words) // _SAMPLE, 1)])
    if len(distinct) < min(_SAMPLE, len(words)) // 2:
        codes = np.minimum(np.searchsorted(distinct, words), len(distinct) - 1).astype(np.int64)
        if not np.array_equal(distinct[codes], words):
            distinct = np.unique(words)
            codes = np.searchsorted(distinct, words).astype(np.int64)
        some = np.zeros(len(distinct), np.intp)
        some[codes] = np.arange(len(codes))
        return codes, some
    # Where most differ, sorting is faster than numpy's hash table.
    order = np.argsort(words)
    ordered = words[order]
    is_new = np.ones(len(words), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    codes = np.empty(len(words), np.int64)
    codes[order] = np.cumsum(is_new) - 1
    return codes, order[is_new]


def _codes_by_sorting(words: Sequence[NDArray[np.uint64]]) -> tuple[Codes, Index]:
    order = np.lexsort(words)
    is_new = np.zeros(len(order), np.bool_)
    for word in words:
        ordered = word[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(is_new)
    some = np.zeros(int(codes.max()) + 1, np.intp)
    some[codes] = np.arange(len(codes))
    return codes, some


def shared_codes(
    left: Sequence[NDArray[np.generic]], right: Sequence[NDArray[np.generic]]
) -> tuple[Codes, Codes, int]:
    """Codes of the rows of two tables with the same key columns, and how many codes there are."""
    codes, some = codes_of(
        *(np.concatenate([a, b]).astype(np.uint64) for a, b in zip(left, right, strict=True))
    )
    return codes[: len(left[0])], codes[len(left[0]) :], len(some)


def stable_order(codes: Codes) -> Index:
    """The order that puts equal codes side by side, smallest first, and otherwise leaves rows in place."""
    if len(codes) and int(codes.max()) < _RADIX_FROM:
        return np.argsort(codes.astype(np.uint16), kind="stable")
    return np.argsort(codes, kind="stable")


def slices_of(codes: Codes, count: int) -> Index:
    """(count + 1,) where each code's rows begin among sorted `codes`."""
    return np.searchsorted(codes, np.arange(count + 1))


class TimeKeys:
    """Turns (code, time) into one integer that sorts as the pair does.

    Where codes × span of the times does not fit 62 bits, as it may with times that a program made up, times are
    replaced by their rank.
    """

    __slots__ = ("_base", "_span", "_ticks")

    def __init__(self, codes: int, *times: Times) -> None:
        filled = [column for column in times if len(column)]
        self._base = min((int(column.min()) for column in filled), default=0)
        last = max((int(column.max()) for column in filled), default=0)
        self._ticks: Times | None = None
        # One more on either side, for times before and after all that are known.
        self._span = last - self._base + 3
        if self._span * (codes + 1) >= _LIMIT:
            self._ticks = np.unique(np.concatenate(filled))
            self._span = len(self._ticks) + 2

    def pack(self, codes: Codes, times: Times) -> NDArray[np.int64]:
        """Keys of times that were given to the constructor."""
        if self._ticks is None:
            places = (times - np.uint64(self._base)).astype(np.int64)
        else:
            places = np.searchsorted(self._ticks, times).astype(np.int64)
        return codes * self._span + places + 1

    def unpack(self, codes: Codes, keys: NDArray[np.int64]) -> Times:
        """The times of keys."""
        places: NDArray[np.int64] = keys - codes * self._span - 1
        if self._ticks is None:
            times: Times = places.astype(np.uint64) + np.uint64(self._base)
            return times
        return self._ticks[places]

    def find(
        self,
        keys: NDArray[np.int64],
        codes: Codes,
        times: Times,
        side: Literal["left", "right"],
    ) -> Index:
        """Where, in sorted `keys`, the first of `codes` at or after (`left`), or after (`right`) `times` is.

        Any times will do.
        """
        if self._ticks is None:
            last = np.uint64(self._base + self._span - 3)
            late, early = times > last, times < np.uint64(self._base)
            places = (np.minimum(times, last) - np.uint64(self._base)).astype(np.int64) + 1
            places[early] = 0
            places[late] = self._span - 1
            return np.searchsorted(keys, codes * self._span + places, side)
        places = np.searchsorted(self._ticks, times, side).astype(np.int64) + 1
        return np.searchsorted(keys, codes * self._span + places, "left")


def running_max(codes: Codes, times: Times) -> Times:
    """The largest of `times` so far among rows of the same code; `codes` are sorted."""
    keys = TimeKeys(int(codes[-1]) + 1 if len(codes) else 0, times)
    return keys.unpack(codes, np.maximum.accumulate(keys.pack(codes, times)))


def running_min_backwards(codes: Codes, times: Times) -> Times:
    """The smallest of `times` from here on among rows of the same code; `codes` are sorted."""
    keys = TimeKeys(int(codes[-1]) + 1 if len(codes) else 0, times)
    packed = np.minimum.accumulate(keys.pack(codes, times)[::-1])[::-1]
    return keys.unpack(codes, packed)


def last_before(
    table: tuple[Codes, Times], queries: tuple[Codes, Times], count: int
) -> tuple[Index, Index]:
    """For each query the last row of `table` of its code at or before its time, and the first after; -1: none.

    `table` need not be sorted; of rows with equal code and time the one further down is the last.
    """
    codes, times = table
    asked, at = queries
    none = np.full(len(asked), -1, np.intp)
    if not len(codes):
        return none, none.copy()
    keys = TimeKeys(count, times)
    packed = keys.pack(codes, times)
    order = np.argsort(packed, kind="stable")
    place = keys.find(packed[order], asked, at, "right")
    before = order[np.maximum(place - 1, 0)]
    after = order[np.minimum(place, len(order) - 1)]
    return (
        np.where((place > 0) & (codes[before] == asked), before, -1),
        np.where((place < len(order)) & (codes[after] == asked), after, -1),
    )


class Ranges(NamedTuple):
    """Pairs: which range, which index inside it; or which row of one table, which of another."""

    owner: Index
    item: Index


def expand(first: Index, past: Index) -> Ranges:
    """All indexes from `first` to before `past` of each range, in order."""
    counts = np.maximum(past - first, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(owner)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return Ranges(owner, index)


def sum_by(owner: Index | Codes, values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """(count,) Σ of the values of each owner, in integers."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, owner, values)
    return sums


def split_exactly(
    total: NDArray[np.int64], owner: Index | Codes, weight: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`total` (g,) of each owner, split over its rows by `weight` (n,), by largest remainder: Σ is exact.

    An owner's weights are not negative and, where it has a total, not all 0. Of equal remainders the earlier row gets
    more.
    """
    given = sum_by(owner, weight, len(total))
    if np.array_equal(given, total):
        return weight.astype(np.int64)
    sums, mine = np.maximum(given, 1)[owner], total[owner]
    part, rest = np.divmod(weight * mine, sums)
    # Products that do not fit: only of gaps that make up much of a long window, so few.
    limit = np.maximum(mine, 1)
    for row in np.flatnonzero(weight > _LIMIT // limit).tolist():
        part[row], rest[row] = divmod(int(weight[row]) * int(mine[row]), int(sums[row]))
    missing = total - sum_by(owner, part, len(total))
    order = np.lexsort((-rest, owner))
    ordered = owner[order]
    rank = np.arange(len(owner)) - slices_of(ordered, len(total))[ordered]
    part[order] += rank < missing[ordered]
    return part
