"""Samples as columns, ready to write: equal identities merged, order fixed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


class Rows(NamedTuple):
    """Samples of one or more profiles, columns of equal length; the encoder knows what they index."""

    stack: Column
    link: Column
    attributes: Column
    sample_type: Column
    value: Column


def concatenate(parts: list[Rows]) -> Rows:
    """All rows of `parts`, in their order."""
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Rows(empty, empty, empty, empty, empty)
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def merge(rows: Rows) -> Rows:
    """Sum the values of equal (sample type, stack, link, attributes) and sort by them.

    Tables of a bundle may name the same stack twice (two frames that differ only in what a format
    does not keep), and bundles of several windows share stacks; a format wants each identity once.
    """
    if not rows.value.size:
        return rows
    order = np.lexsort((rows.attributes, rows.link, rows.stack, rows.sample_type))
    ordered = Rows(*(column[order] for column in rows))
    starts = _starts(ordered.sample_type, ordered.stack, ordered.link, ordered.attributes)
    return Rows(
        ordered.stack[starts],
        ordered.link[starts],
        ordered.attributes[starts],
        ordered.sample_type[starts],
        np.add.reduceat(ordered.value, starts),
    )


def pivot(rows: Rows, sample_types: int) -> tuple[Rows, NDArray[np.int64]]:
    """One row for each (stack, link, attributes), and its values as a matrix [row, sample type]."""
    if not rows.value.size:
        return rows, np.zeros((0, sample_types), dtype=np.int64)
    order = np.lexsort((rows.attributes, rows.link, rows.stack))
    ordered = Rows(*(column[order] for column in rows))
    starts = _starts(ordered.stack, ordered.link, ordered.attributes)
    row_of = np.zeros(len(order), dtype=np.int64)
    row_of[starts[1:]] = 1
    values = np.zeros((len(starts), sample_types), dtype=np.int64)
    np.add.at(values, (np.cumsum(row_of), ordered.sample_type), ordered.value)
    return Rows(*(column[starts] for column in ordered)), values


def _starts(*keys: Column) -> NDArray[np.intp]:
    """Positions at which any of the sorted `keys` changes, the first row included."""
    changed = np.ones(len(keys[0]), dtype=np.bool_)
    changed[1:] = False
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)
