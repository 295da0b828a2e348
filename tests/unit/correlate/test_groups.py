"""The group-by: exact for any keys, also where their hashes collide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from otel_gpuflame.correlate import groups
from otel_gpuflame.correlate.groups import Groups, concatenate, group, runs

WORDS = st.integers(0, 3) | st.sampled_from([2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
ROWS = st.lists(st.tuples(WORDS, WORDS, WORDS, st.integers(-(2**40), 2**40)), max_size=60)


@pytest.fixture(params=["hashed", "all hashes collide"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Once as it is, once with a hash that is 0 for every key."""
    if request.param != "hashed":
        monkeypatch.setattr(groups, "_MULTIPLIER", np.uint64(0))
    return str(request.param)


def arrays(rows: list[tuple[int, ...]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Keys of three words, and two values: the last item, and 1."""
    keys = np.array([row[:3] for row in rows], np.uint64).reshape(-1, 3)
    values = np.array([(row[3], 1) for row in rows], np.int64).reshape(-1, 2)
    return keys, values


def expected(rows: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, int]]:
    """The same by a dictionary."""
    sums: Counter[tuple[int, ...]] = Counter()
    counts: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        sums[row[:3]] += row[3]
        counts[row[:3]] += 1
    return {key: (sums[key], counts[key]) for key in counts}


def merged(parts: Iterable[Groups]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Groups as a dictionary; a key that occurs more than once is added up, as callers do."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for part in parts:
        for key, (total, count) in zip(part.keys.tolist(), part.sums.tolist(), strict=True):
            before = found.get(tuple(key), (0, 0))
            found[tuple(key)] = (before[0] + total, before[1] + count)
    return found


FIXTURE_IS_CONSTANT = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@FIXTURE_IS_CONSTANT
@given(rows=ROWS)
def test_group_equals_a_dictionary(hashing: str, rows: list[tuple[int, ...]]) -> None:
    """Sums by key are those of a dictionary, whatever the hashes are."""
    assert merged([group(*arrays(rows))]) == expected(rows)


@FIXTURE_IS_CONSTANT
@given(rows=ROWS, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_batches_add_up_to_the_whole(
    hashing: str, rows: list[tuple[int, ...]], cuts: list[int]
) -> None:
    """Groups of any batches, concatenated, are the groups of all rows."""
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    parts = [group(*arrays(rows[a:b])) for a, b in pairwise(edges)]
    if parts:
        assert merged([concatenate(parts)]) == expected(rows)


@FIXTURE_IS_CONSTANT
@given(rows=ROWS.filter(len))
def test_a_run_holds_equal_rows_only(hashing: str, rows: list[tuple[int, ...]]) -> None:
    """`runs` orders every row once, and cuts the order wherever neighbours differ."""
    keys, _ = arrays(rows)
    order, starts = runs(keys)
    assert sorted(order.tolist()) == list(range(len(rows)))
    ordered = [tuple(key) for key in keys[order].tolist()]
    changes = [i for i in range(len(rows)) if i == 0 or ordered[i] != ordered[i - 1]]
    assert starts.tolist() == changes


def test_equal_keys_are_one_group_where_hashes_differ() -> None:
    """The real hash brings all equal rows together: 5,000 rows of 50 keys are 50 groups."""
    random = np.random.default_rng(7)
    keys = random.integers(0, 2**64, (50, 7), np.uint64)[random.integers(0, 50, 5_000)]
    assert len(group(keys, np.ones((5_000, 1), np.int64))) == 50


@pytest.mark.parametrize("differing", range(7))
def test_keys_that_differ_in_one_word_stay_apart(hashing: str, differing: int) -> None:
    """No word of a key is left out of the comparison."""
    keys = np.zeros((2, 7), np.uint64)
    keys[1, differing] = 1
    assert len(group(keys, np.ones((2, 1), np.int64))) == 2


def test_nothing_is_grouped_into_nothing() -> None:
    """No rows, no groups."""
    assert len(group(np.zeros((0, 3), np.uint64), np.zeros((0, 2), np.int64))) == 0
