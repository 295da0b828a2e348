"""Joins over columns give what loops over rows would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu import keys
from otel_gpuflame.correlate.gpu.keys import (
    TimeKeys,
    codes_of,
    expand,
    last_before,
    running_max,
    running_min_backwards,
    split_exactly,
    stable_order,
)

times = st.one_of(st.integers(0, 30), st.sampled_from([0, 2**62, 2**63, 2**64 - 1]))
rows = st.lists(st.tuples(st.integers(0, 3), times), max_size=20)


def columns(some: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(codes, times) sorted by code."""
    some = sorted(some, key=lambda row: row[0])
    return (
        np.array([code for code, _ in some], np.int64),
        np.array([time for _, time in some], np.uint64),
    )


@pytest.mark.parametrize("count", [0, 1, 5, 10_000])
@pytest.mark.parametrize("distinct", [1, 7, 1_000_000])
def test_equal_rows_have_equal_codes(count: int, distinct: int) -> None:
    """Codes are dense, equal exactly where all columns are, and each has one of its rows."""
    random = np.random.default_rng(1)
    left, right = random.integers(0, distinct, (2, count), dtype=np.uint64)
    codes, some = codes_of(left, right.astype(np.uint32))
    assert sorted(set(codes.tolist())) == list(range(len(some)))
    meanings = {code: (left[row], right[row]) for code, row in enumerate(some.tolist())}
    assert len(set(meanings.values())) == len(some)
    pairs = zip(codes.tolist(), left, right, strict=True)
    assert all(meanings[code] == (a, b) for code, a, b in pairs)


@pytest.mark.parametrize("count", [3, 10_000])
def test_keys_that_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A program can choose handles whose hashes collide: they are different keys all the same."""
    monkeypatch.setattr(keys, "_MULTIPLIER", np.uint64(0))
    left = np.arange(count, dtype=np.uint64) // np.uint64(2)
    right = np.zeros(count, np.uint64)
    codes, some = codes_of(left, right)
    assert len(some) == (count + 1) // 2
    assert left[some][codes].tolist() == left.tolist()


@pytest.mark.parametrize("largest", [10, 70_000])
def test_rows_of_a_code_keep_their_order(largest: int) -> None:
    """Sorting by code leaves equal ones in place, whichever way it is done."""
    codes = np.array([3, 1, largest, 1, 3, 0], np.int64)
    assert stable_order(codes).tolist() == [5, 1, 3, 0, 4, 2]


@pytest.mark.parametrize(
    ("function", "reduce", "reverse"),
    [(running_max, max, False), (running_min_backwards, min, True)],
)
@settings(max_examples=50, deadline=None)
@given(some=rows)
def test_running_extremes_stay_within_a_code(
    function: Callable[..., np.ndarray],
    reduce: Callable[..., int],
    reverse: bool,
    some: list[tuple[int, int]],
) -> None:
    """The largest so far, or the smallest from here on, among rows of one code; of times of any size."""
    codes, values = columns(some)
    found = function(codes, values).tolist()
    for place, code in enumerate(codes.tolist()):
        others = range(place, len(codes)) if reverse else range(place + 1)
        assert found[place] == reduce(int(values[o]) for o in others if codes[o] == code)


@settings(max_examples=100, deadline=None)
@given(rows, st.lists(st.tuples(st.integers(0, 3), times), max_size=10))
def test_the_last_before_and_the_first_after(
    some: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    """At or before a time the last of a code, else none; and the first after."""
    table, queries = columns(some), columns(asked)
    before, after = last_before(table, queries, 4)
    for place, (code, time) in enumerate(zip(*(each.tolist() for each in queries), strict=True)):
        mine = [int(t) for c, t in zip(*table, strict=True) if c == code]
        earlier, later = [t for t in mine if t <= time], [t for t in mine if t > time]
        found = table[1][before[place]] if before[place] >= 0 else None
        assert found == (max(earlier) if earlier else None)
        found = table[1][after[place]] if after[place] >= 0 else None
        assert found == (min(later) if later else None)


@settings(max_examples=100, deadline=None)
@given(rows, times, st.integers(0, 3))
def test_keys_find_any_time(some: list[tuple[int, int]], time: int, code: int) -> None:
    """Also times that lie outside of all that are known, on both sides of equal ones."""
    codes, values = columns(sorted(some))
    time_keys = TimeKeys(4, values)
    packed = time_keys.pack(codes, values)
    assert (np.diff(packed) >= 0).all()
    assert time_keys.unpack(codes, packed).tolist() == values.tolist()
    one = (np.array([code], np.int64), np.array([time], np.uint64))
    pairs = list(zip(codes.tolist(), values.tolist(), strict=True))
    assert time_keys.find(packed, *one, "left")[0] == sum(p < (code, time) for p in pairs)
    assert time_keys.find(packed, *one, "right")[0] == sum(p <= (code, time) for p in pairs)


def test_ranges_are_expanded_in_order() -> None:
    """Every index of every range with its range; empty and inverted ones have none."""
    found = expand(np.array([3, 5, 9, 0]), np.array([5, 5, 7, 2]))
    assert found.owner.tolist() == [0, 0, 3, 3]
    assert found.item.tolist() == [3, 4, 0, 1]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**40)), max_size=12),
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
)
def test_splits_are_exact(weights: list[tuple[int, int]], totals: list[int]) -> None:
    """Σ of an owner's parts is its total, and each part its share, rounded up or down."""
    owner = np.array([each for each, _ in weights], np.int64)
    weight = np.array([each for _, each in weights], np.int64)
    sums = [sum(w for o, w in weights if o == each) for each in range(3)]
    total = np.array([t if s else 0 for t, s in zip(totals, sums, strict=True)], np.int64)
    part = split_exactly(total, owner, weight)
    for each in range(3):
        mine = [(int(p), w) for p, (o, w) in zip(part, weights, strict=True) if o == each]
        assert sum(p for p, _ in mine) == total[each]
        for found, of in mine:
            exact = int(total[each]) * of // max(sums[each], 1)
            assert exact <= found <= exact + 1
