"""Which pairs occur in two columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.capture.distinct import DistinctPairs

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1) | st.integers(0, 3)))


@given(batches=st.lists(PAIRS, max_size=5))
def test_pairs_of_every_batch_are_those_of_a_set(batches: list[list[tuple[int, int]]]) -> None:
    """Each batch gives its own distinct pairs once, whatever came before."""
    seen = DistinctPairs()
    for batch in batches:
        first = np.array([pair[0] for pair in batch], np.uint32)
        second = np.array([pair[1] for pair in batch], np.uint64)
        found = seen.among(first, second)
        assert sorted(found) == sorted(set(batch))


def test_pairs_that_no_longer_come_are_not_remembered_for_ever() -> None:
    """However many pairs have come, no more are remembered than the limit and one batch."""
    seen = DistinctPairs(max_pairs=100)
    for batch in range(50):
        first = np.full(20, batch, np.uint32)
        second = np.arange(20, dtype=np.uint64)
        assert sorted(seen.among(first, second)) == [(batch, number) for number in range(20)]
        assert len(seen) <= 120


@given(pairs=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))))
def test_what_is_forgotten_takes_no_room_and_may_come_again(pairs: list[tuple[int, int]]) -> None:
    """Of ended processes nothing stays; a pair that comes all the same is found as before."""
    seen = DistinctPairs()
    first = np.array([pair[0] for pair in pairs], np.uint32)
    second = np.array([pair[1] for pair in pairs], np.uint64)
    seen.among(first, second)
    half = set(pairs[: len(pairs) // 2])
    seen.forget(half)
    assert len(seen) == len(set(pairs) - half)
    seen.forget(half)
    assert sorted(seen.among(first, second)) == sorted(set(pairs))


def test_words_of_columns_of_64_bits_are_forgotten_too() -> None:
    """Stack hashes fill both words; their product wraps."""
    seen = DistinctPairs()
    pair = (2**64 - 3, 2**63 + 5)
    seen.among(np.array(pair[:1], np.uint64), np.array(pair[1:], np.uint64))
    seen.forget([pair])
    assert len(seen) == 0
