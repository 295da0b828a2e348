"""Column codecs of the capture file: structured rows to packed, transposed bytes and back. Pure
functions.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Codec = Literal["raw", "shuffle", "delta+shuffle"]
CODECS: tuple[str, ...] = get_args(Codec)


def encode_column(column: NDArray[Any], codec: str) -> bytes:
    """Bytes of one column, row 0 first; `column` has shape (rows, *the field's own shape)."""
    items = np.ascontiguousarray(column)
    if codec == "raw" or not len(items):
        return items.tobytes()
    if codec == "delta+shuffle":
        items = _delta(items)
    return items.view(np.uint8).reshape(len(items), -1).T.tobytes()


def decode_column(data: memoryview, field: np.dtype[Any], rows: int, codec: str) -> NDArray[Any]:
    """The column that `encode_column` made `data` of, shape (rows, *field.shape); may be read-only.

    `len(data)` must be `rows * field.itemsize`; `codec` one of `CODECS`.
    """
    planes = np.frombuffer(data, dtype=np.uint8)
    if codec != "raw" and rows:
        planes = np.ascontiguousarray(planes.reshape(field.itemsize, rows).T).reshape(-1)
    column = planes.view(field.base).reshape(rows, *field.shape)
    if codec == "delta+shuffle":
        unsigned = column.view(_unsigned(field.base))
        return np.cumsum(unsigned, axis=0, dtype=unsigned.dtype).view(field.base)
    return column


def can_delta(field: np.dtype[Any]) -> bool:
    """Whether differences between rows are defined for this field: integers only."""
    return field.base.kind in "ui"


def _delta(items: NDArray[Any]) -> NDArray[Any]:
    """Row 0, then each row minus the one before, modulo the width: inverted timestamps need no
    escape.
    """
    unsigned = items.view(_unsigned(items.dtype))
    differences = unsigned.copy()
    differences[1:] -= unsigned[:-1]
    return differences


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")
