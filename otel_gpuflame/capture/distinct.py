"""Which pairs of words occur in two columns, fast enough for a million calls a second."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
MAX_PAIRS: Final = 1 << 16
"""More than the 50,000 stacks that are kept known at a time. Pairs of processes that have ended stay until then, 200
bytes each: with a limit of a million an agent would grow for weeks."""


class DistinctPairs:
    """Remembers the pairs that it has met by one word each, so that a batch is only searched for words.

    That two pairs share a word is as good as impossible; the second would then be taken for the first.
    """

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._max_pairs = max_pairs
        self._pairs: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Pairs that are remembered."""
        return len(self._pairs)

    def among(
        self, first: NDArray[np.unsignedinteger], second: NDArray[np.uint64]
    ) -> list[tuple[int, int]]:
        """Distinct pairs of two columns of equal length, in no particular order."""
        words = first * _ODD ^ second
        found = np.unique(words).tolist()
        if any(word not in self._pairs for word in found):
            self._learn(words, first, second)
        return [self._pairs[word] for word in found]

    def _learn(
        self,
        words: NDArray[np.uint64],
        first: NDArray[np.unsignedinteger],
        second: NDArray[np.uint64],
    ) -> None:
        if len(self._pairs) > self._max_pairs:
            self._pairs.clear()
        distinct, rows = np.unique(words, return_index=True)
        pairs = zip(first[rows].tolist(), second[rows].tolist(), strict=True)
        self._pairs.update(zip(distinct.tolist(), pairs, strict=True))
