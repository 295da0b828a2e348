"""Which pairs of words occur in two columns, fast enough for a million calls a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_ODD: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
MAX_PAIRS: Final = 1 << 16
"""More than the 50,000 stacks that are kept known at a time. Reached only by pairs that nobody forgets, such as stacks
that were lost; they take 200 bytes each."""


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
        words = first * np.uint64(_ODD) ^ second
        found = np.unique(words).tolist()
        if any(word not in self._pairs for word in found):
            self._learn(words, first, second)
        return [self._pairs[word] for word in found]

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """These are not expected to come again; if they do, they are met anew."""
        for first, second in pairs:
            self._pairs.pop((first * _ODD & _WORD) ^ second, None)

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
