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
