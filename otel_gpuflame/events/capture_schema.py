"""How a capture file describes its own tables: numpy dtype and column codecs, as JSON, checked
before they are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.codecs import CODECS, can_delta, decode_column, encode_column

MAX_COLUMNS = 1024
MAX_ROW_BYTES = 1 << 16
_FORMAT = re.compile(r"(?:\((\d{1,5}(?:,\d{1,5}){0,3}),?\))?(<[uif][248]|\|[uib]1|\|S\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One kind of rows: `dtype` as numpy has it, and one codec for each of its fields, in order."""

    name: str
    dtype: np.dtype[Any]
    codecs: tuple[str, ...]

    @property
    def packed_bytes(self) -> int:
        """Bytes of a row in a payload: the columns without the padding between them."""
        return sum(field.itemsize for _, field in self.fields())

    def fields(self) -> list[tuple[str, np.dtype[Any]]]:
        """Names and dtypes of the columns, in file order."""
        return [(name, self.dtype[name]) for name in _names(self.dtype)]

    def pack(self, rows: NDArray[Any]) -> bytes:
        """Column-major payload of `rows`, which must have this schema's dtype."""
        columns = zip(_names(self.dtype), self.codecs, strict=True)
        return b"".join(encode_column(rows[name], codec) for name, codec in columns)

    def unpack(self, payload: bytes, rows: int) -> NDArray[Any]:
        """The rows of a payload of exactly `rows * packed_bytes` bytes; padding is 0."""
        table = np.zeros(rows, dtype=self.dtype)
        view, start = memoryview(payload), 0
        for (name, field), codec in zip(self.fields(), self.codecs, strict=True):
            end = start + rows * field.itemsize
            table[name] = decode_column(view[start:end], field, rows, codec)
            start = end
        return table

    def to_json(self) -> dict[str, Any]:
        """The dict form of a numpy dtype, plus `name` and `codecs`."""
        names = _names(self.dtype)
        return {
            "name": self.name,
            "names": list(names),
            "formats": [_format(self.dtype[name]) for name in names],
            "offsets": [_offset(self.dtype, name) for name in names],
            "itemsize": self.dtype.itemsize,
            "codecs": list(self.codecs),
        }


def describe(name: str, dtype: np.dtype[Any]) -> TableSchema:
    """The schema under which a writer stores rows of `dtype`.

    Raises:
        CaptureFileError: the dtype has no fields, or a field that is not a little-endian number or
            byte string.
    """
    if dtype.names is None:
        raise CaptureFileError(f"{name}: {dtype} is not a structured dtype")
    codecs = tuple(_choose_codec(field, dtype[field]) for field in dtype.names)
    schema = TableSchema(name=name, dtype=dtype, codecs=codecs)
    parse_schema(schema.to_json())
    return schema


def parse_schema(value: object) -> TableSchema:
    """Check a schema from a file and build its dtype.

    Raises:
        CaptureFileError: anything missing, of the wrong type, overlapping, too large, or of an
            unknown format or codec.
    """
    if not isinstance(value, dict):
        raise CaptureFileError(f"expected a table schema, found {type(value).__name__}")
    name = _typed(value, "name", str)
    names, formats, offsets, codecs = (
        _typed(value, key, list) for key in ("names", "formats", "offsets", "codecs")
    )
    if not 0 < len(names) <= MAX_COLUMNS or not len(names) == len(formats) == len(offsets) == len(
        codecs
    ):
        raise CaptureFileError(
            f"table {name!r}: expected 1 to {MAX_COLUMNS} columns, each with format, offset, codec"
        )
    fields = [_field(name, each) for each in formats]
    _check_codecs(name, fields, codecs)
    itemsize = _typed(value, "itemsize", int)
    _check_layout(name, fields, offsets, itemsize)
    try:
        dtype = np.dtype(
            {"names": names, "formats": fields, "offsets": offsets, "itemsize": itemsize}
        )
    except (ValueError, TypeError) as error:
        raise CaptureFileError(f"table {name!r}: {error}") from error
    return TableSchema(name=name, dtype=dtype, codecs=tuple(codecs))


def conform(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`rows` with the fields of `dtype`: same name, same value; a field that `rows` lacks is 0;
    others are left out.

    This is how captures of an older or newer version reach code that knows the current dtype.

    Raises:
        CaptureFileError: a field exists in both, but in a shape or type that cannot be converted
            without loss.
    """
    if rows.dtype == dtype:
        return rows
    result = np.zeros(len(rows), dtype=dtype)
    for name in set(_names(rows.dtype)) & set(_names(dtype)):
        old, new = rows.dtype[name], dtype[name]
        if old.shape != new.shape or not np.can_cast(old.base, new.base, "safe"):
            raise CaptureFileError(
                f"column {name!r} is {_format(old)}, which does not fit {_format(new)}: "
                "replay it with the version of otel_gpuflame that recorded it"
            )
        result[name] = rows[name]
    return result


def join_rows(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of all rows. `np.concatenate` may drop the padding between the fields, and with it
    change the dtype.
    """
    joined = np.zeros(sum(map(len, parts)), dtype=parts[0].dtype)
    start = 0
    for part in parts:
        joined[start : start + len(part)] = part
        start += len(part)
    return joined


def _choose_codec(name: str, field: np.dtype[Any]) -> str:
    """Times grow: differences are small.

    Arrays of bytes or of 64-bit words are identifiers (trace id, stack hash), which repeat as a
    whole: transposed, zstd must find the repetition again for each byte. Raw, captures of a
    training loop came out 7 to 13 % smaller.
    """
    if name.endswith("_ns") and can_delta(field):
        return "delta+shuffle"
    return "raw" if field.shape and field.base.itemsize in (1, 8) else "shuffle"


def _names(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return dtype.names or ()


def _offset(dtype: np.dtype[Any], name: str) -> int:
    offset: int = dtype.fields[name][1] if dtype.fields else 0
    return offset


def _format(field: np.dtype[Any]) -> str:
    shape = f"({','.join(map(str, field.shape))},)" if field.shape else ""
    return shape + field.base.str


def _typed(value: dict[str, Any], key: str, kind: type) -> Any:
    found = value.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise CaptureFileError(
            f"table schema: expected {key!r} to be {kind.__name__}, found {found!r:.80}"
        )
    return found


def _field(table: str, text: object) -> np.dtype[Any]:
    match = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise CaptureFileError(
            f"table {table!r}: column format {text!r:.80} is not a little-endian number "
            "or byte string"
        )
    shape = tuple(int(size) for size in match[1].split(",")) if match[1] else ()
    base = np.dtype(match[2])
    if not 0 < prod(shape) * base.itemsize <= MAX_ROW_BYTES:
        raise CaptureFileError(
            f"table {table!r}: column format {text!r} is not 1 to {MAX_ROW_BYTES} bytes"
        )
    return np.dtype((base, shape)) if shape else base


def _check_codecs(table: str, fields: list[np.dtype[Any]], codecs: list[object]) -> None:
    for field, codec in zip(fields, codecs, strict=True):
        if codec not in CODECS or (codec == "delta+shuffle" and not can_delta(field)):
            raise CaptureFileError(
                f"table {table!r}: codec {codec!r:.80} is unknown for {_format(field)}"
            )


def _check_layout(
    table: str, fields: list[np.dtype[Any]], offsets: list[object], itemsize: int
) -> None:
    """Columns must not overlap: otherwise a row of few bytes in memory could need many in the file,
    or the reverse.
    """
    if (
        not all(type(offset) is int and offset >= 0 for offset in offsets)
        or not 0 < itemsize <= MAX_ROW_BYTES
    ):
        raise CaptureFileError(
            f"table {table!r}: offsets or itemsize are not numbers from 0 to {MAX_ROW_BYTES}"
        )
    end = 0
    for offset, field in sorted(
        ((int(str(o)), f) for o, f in zip(offsets, fields, strict=True)), key=lambda p: p[0]
    ):
        if offset < end or offset + field.itemsize > itemsize:
            raise CaptureFileError(
                f"table {table!r}: the column at {offset} overlaps another, or the row's end"
            )
        end = offset + field.itemsize
