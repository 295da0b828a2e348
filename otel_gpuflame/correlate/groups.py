"""Group-by over columns of words: exact, and fast enough for a million calls a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that every bit of a word counts."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Distinct keys with sums: `keys` (g, k) words, `sums` (g, s). A key may occur more than once, see `group`.

    Both are stored by column, as everything that works on them goes column by column.
    """

    keys: NDArray[np.uint64]
    sums: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)


def group(keys: NDArray[np.uint64], values: NDArray[np.int64]) -> Groups:
    """Add up `values` (n, s) of rows with equal `keys` (n, k). Fastest where both are stored by column.

    Different keys are never added together, but a key may appear in several groups (see `runs`): the caller merges
    groups by key in the end.
    """
    if not len(keys):
        return Groups(keys, values)
    order, starts = runs(keys)
    sums = np.add.reduceat(values.T.take(order, axis=1), starts, axis=1)
    return Groups(keys.T.take(order[starts], axis=1).T, sums.T)


def runs(keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """An order that puts equal rows of `keys` (n, k) side by side, and where in it each run of equal rows starts.

    Rows are sorted by a 64-bit hash and neighbours compared in full, so a run never holds different rows. Rows whose
    hashes collide may alternate: a row then has more than one run.
    """
    # In one step: each step that lets go of the interpreter lock may wait for it, while a window is being encoded.
    weights = np.cumprod(np.full(keys.shape[1], _MULTIPLIER))
    order = np.argsort(np.einsum("nk,k->n", keys, weights))
    is_start = np.ones(len(keys), np.bool_)
    # numpy.take, since indexing with an array is three times slower.
    if keys.flags.c_contiguous:
        ordered = keys.take(order, axis=0)
        is_start[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    else:
        ordered = keys.T.take(order, axis=1)
        is_start[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return order, np.flatnonzero(is_start)


def concatenate(parts: list[Groups]) -> Groups:
    """Merge groups of several batches into one."""
    if len(parts) == 1:
        return parts[0]
    return group(np.concatenate([p.keys for p in parts]), np.concatenate([p.sums for p in parts]))
