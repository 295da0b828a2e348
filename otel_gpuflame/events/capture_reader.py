"""Reads a capture file as a stream of events, one segment in memory at a time. Never trusts a
number in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.capture_blocks import (
    Block,
    BlockStream,
    ByteStream,
    DamageError,
    parse_json,
)
from otel_gpuflame.events.capture_decode import ReadDictionary, SegmentDecoder
from otel_gpuflame.events.capture_format import (
    MAX_HEADER_BYTES,
    MAX_OBJECT_ROWS,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_EVENTS,
    Kind,
)
from otel_gpuflame.events.capture_schema import TableSchema, conform, join_rows, parse_schema
from otel_gpuflame.events.capture_tables import ADDED_COLUMNS, BYTE_TABLES, TABLES
from otel_gpuflame.events.capture_times import CaptureTimes
from otel_gpuflame.events.records import Event

_KINDS = frozenset(Kind)
_TABLE_KINDS = _KINDS - {Kind.SCHEMA, Kind.END, Kind.RESET}


def read_capture(stream: ByteStream) -> CaptureReader:
    """Check the header of a capture and return the iterator over its events.

    Raises:
        CaptureFileError: not a capture, of another major version, or damaged in its header: nothing
            can be read.
    """
    return CaptureReader(stream)


class CaptureReader(Iterator[Event]):
    """Iterator over the events of a capture: equal to those written, in the same order, batch by
    batch.

    Damage after the header ends the iteration and does not raise: the events of all segments
    before it are delivered, and `damage` says where and what. So look at `damage` when the iterator
    is exhausted. Call rows have the dtype of the file; `capture_schema.conform` maps them onto
    another.
    """

    def __init__(self, stream: ByteStream) -> None:
        """Read and check the file header; raises as `read_capture`."""
        self._blocks = BlockStream(stream)
        self._dictionary = ReadDictionary()
        self.times = CaptureTimes()
        """Which times can be, by the start as far as it has been read."""
        self._schemas: dict[int, TableSchema] = {}
        self._add_schemas(self._blocks.header.get("kinds"))
        self.version = self._blocks.version
        """Major and minor version of the file."""
        self.created = _created(self._blocks.header)
        """What the writer was told about the origin of the file."""
        self.damage: str | None = None
        """Where the file stopped making sense, in which block, and what was expected; None: no
        damage so far."""
        self.skipped_blocks: Counter[int] = Counter()
        """Blocks of kinds that this version does not know, by kind."""
        self.skipped_events: Counter[int] = Counter()
        """Events of kinds that this version does not know, by kind."""
        self._events = self._read_segments()

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the stream so far."""
        return self._blocks.bytes_read

    @property
    def unknown_frame_kinds(self) -> Counter[str]:
        """Frames of kinds that this version does not know (they are delivered as native), by
        kind.
        """
        return self._dictionary.unknown_frame_kinds

    def __next__(self) -> Event:
        """The next event."""
        return next(self._events)

    def _read_segments(self) -> Iterator[Event]:
        try:
            while (segment := self._read_segment()) is not None:
                yield from self._decode(segment)
            self._blocks.require_end()
        except DamageError as damage:
            self.damage = str(damage)

    def _read_segment(self) -> _Segment | None:
        """All blocks up to `EVENTS`; None at the end block."""
        segment = _Segment(self.bytes_read)
        while True:
            block = self._blocks.next_block()
            if block.kind not in _KINDS:
                self.skipped_blocks[block.kind] += 1
            elif block.kind in _TABLE_KINDS:
                segment.add(block, self._schema_of(block))
                if block.kind == Kind.EVENTS:
                    return segment
            elif not segment.is_empty:
                raise block.damage(
                    "expected no such block between the first table of a segment and its events"
                )
            elif block.kind == Kind.END:
                return None
            else:
                self._obey(block)

    def _obey(self, block: Block) -> None:
        """Schema and reset: they change how the segment that follows is read."""
        if block.kind == Kind.RESET:
            self._dictionary.reset()
            return
        if block.header.raw_bytes > MAX_HEADER_BYTES:
            raise block.damage(f"expected at most {MAX_HEADER_BYTES} bytes of schema")
        try:
            self._add_schemas(parse_json(block.payload()))
        except DamageError:
            raise
        except CaptureFileError as error:
            raise block.damage(str(error)) from error

    def _add_schemas(self, value: object) -> None:
        """Take the schemas of known kinds: a newer version may describe others in ways that this
        one cannot parse.
        """
        if not isinstance(value, dict):
            raise CaptureFileError(f"expected table schemas by kind, found {type(value).__name__}")
        for kind in _TABLE_KINDS:
            if str(int(kind)) in value:
                schema = parse_schema(value[str(int(kind))])
                _require_columns(kind, schema)
                self._schemas[kind] = schema

    def _schema_of(self, block: Block) -> TableSchema:
        schema = self._schemas.get(block.kind)
        if schema is None:
            raise block.damage("expected a schema for this kind before its first block")
        return schema

    def _decode(self, segment: _Segment) -> list[Event]:
        """Events of a whole segment, all or none: half of one would be wrong in silence."""
        try:
            tables = segment.tables()
            if Kind.CALLS in self._schemas:
                tables.setdefault(Kind.CALLS, np.empty(0, dtype=self._schemas[Kind.CALLS].dtype))
            self._dictionary.extend(tables)
            events, skipped = SegmentDecoder(tables, self._dictionary, self.times).decode()
        except CaptureFileError as error:
            raise DamageError(f"in the segment from offset {segment.offset}: {error}") from error
        self.skipped_events.update(skipped)
        return events


class _Segment:
    """The tables of one segment as they come in, within the limits of the format."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._parts: dict[int, list[NDArray[Any]]] = {}
        self._rows: Counter[int] = Counter()
        self._size_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether no table has begun."""
        return not self._parts

    def add(self, block: Block, schema: TableSchema) -> None:
        """Unpack a block; raises DamageError before anything large is allocated."""
        rows, raw_bytes = block.header.rows, block.header.raw_bytes
        if raw_bytes != rows * schema.packed_bytes:
            raise block.damage(
                f"expected {rows} rows of {schema.packed_bytes} bytes, found {raw_bytes} bytes"
            )
        self._size_bytes += rows * schema.dtype.itemsize
        if self._size_bytes > MAX_SEGMENT_BYTES:
            raise block.damage(f"expected at most {MAX_SEGMENT_BYTES} bytes of rows a segment")
        self._rows[block.kind] += rows
        max_rows = MAX_SEGMENT_EVENTS if block.kind == Kind.EVENTS else MAX_OBJECT_ROWS
        if block.kind not in BYTE_TABLES and self._rows[block.kind] > max_rows:
            raise block.damage(f"expected at most {max_rows} rows a segment")
        table = schema.unpack(block.payload(), rows)
        self._parts.setdefault(block.kind, []).append(table)

    def tables(self) -> dict[int, NDArray[Any]]:
        """One array a kind: `calls` as the file has them, all others with the columns that this
        version knows.
        """
        return {kind: _columns(kind, parts) for kind, parts in self._parts.items()}


def _columns(kind: int, parts: list[NDArray[Any]]) -> NDArray[Any]:
    rows = parts[0] if len(parts) == 1 else join_rows(parts)
    return rows if kind == Kind.CALLS else conform(rows, TABLES[Kind(kind)].dtype)


def _require_columns(kind: Kind, schema: TableSchema) -> None:
    """A minor version may add columns but not change or drop one: 0 in place of a name would be
    wrong in silence. Those of executions come from the library, and may be of another version.
    """
    expected = TABLES.get(kind)
    if expected is None or kind == Kind.EXECUTIONS:
        return
    found = dict(schema.fields())
    for name, field in expected.fields():
        if name in ADDED_COLUMNS.get(kind, ()) and name not in found:
            continue
        if found.get(name) != field:
            raise CaptureFileError(
                f"table {schema.name!r}: expected column {name!r} as {field.str}, "
                f"found {found.get(name)}"
            )


def _created(header: dict[str, Any]) -> dict[str, str]:
    created = header.get("created")
    if not isinstance(created, dict):
        raise CaptureFileError("the header of the capture lacks `created`")
    return {key: str(value) for key, value in created.items()}
