"""Writes events as a capture file to anything with a `write`. Opens, closes and syncs nothing, and
knows no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import capture_format as fmt
from otel_gpuflame.events.capture_encode import WriteDictionary, encode_event
from otel_gpuflame.events.capture_format import Encoding, Kind
from otel_gpuflame.events.capture_schema import TableSchema, describe, join_rows
from otel_gpuflame.events.capture_tables import BYTE_TABLES, TABLES, table_dtype
from otel_gpuflame.events.executions import ExecutionArray, Executions
from otel_gpuflame.events.records import CallArray, Calls, Event, Watermark

_FLUSH_BYTES = 4 << 20
"""Some 29,000 calls. It is the memory that a recording costs."""
_FLUSH_EVENTS = 1 << 16
_BLOCK_BYTES = 16 << 20
_BATCH_BYTES = 32 << 20
_DICTIONARY_ENTRIES = 1 << 18
_DICTIONARY_BYTES = 32 << 20
_ZSTD_LEVEL = 3


class Sink(Protocol):
    """Where the bytes go: a file opened for binary writing. Short writes are continued; errors are
    passed on.
    """

    def write(self, data: memoryview, /) -> int:
        """Take some of `data` and say how many bytes."""
        ...


class CaptureWriter:
    """Appends events to a capture file, in segments that are readable one by one.

    Not thread-safe. Does not own the sink: close the writer, then the file. A segment is handed
    over in one `write`, so a file opened with `buffering=0` has every flushed segment even when the
    process is killed.
    """

    def __init__(
        self, sink: Sink, *, created: Mapping[str, str], flush_after_ns: int = 1_000_000_000
    ) -> None:
        """Write the file header.

        Args:
            sink: takes the bytes.
            created: what made the file (version, host, command): free-form, not interpreted when
                read.
            flush_after_ns: a watermark ends the segment when this much event time has passed since
                the last one that did. It is what a crash can lose.

        Raises:
            CaptureFileError: `created` is larger than a header may be.
            OSError: from the sink.
        """
        self._sink = sink
        self._flush_after_ns = flush_after_ns
        self._last_flush_ns: int | None = None
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self._dictionary = WriteDictionary()
        self._call_schema: TableSchema | None = None
        self._preamble: list[tuple[Kind, bytes]] = []
        self._segment = _Segment()
        self._state = "open"
        self._written_bytes = 0
        header, self._crc32 = fmt.seal_header(_header(created))
        self._put(header)

    @property
    def written_bytes(self) -> int:
        """What the sink has taken so far."""
        return self._written_bytes

    @property
    def is_open(self) -> bool:
        """Whether it takes events: it is neither closed nor failed."""
        return self._state == "open"

    def write(self, event: Event) -> None:
        """Take one event; it is in the file after the next flush. Arrays are copied and may be
        reused by the caller.

        `Calls` and `Executions` of more than 32 MiB come back as several; every other event comes
        back as it is.

        Raises:
            CaptureFileError: a value of the event does not fit its column (the event is left out,
                writing may go on), or the writer is closed or has failed before, or as `flush`.
            OSError: from the sink; the file is then damaged at its end, and the writer takes
                nothing more.
        """
        self._require_open()
        if isinstance(event, Calls):
            self._add_calls(event.rows)
        elif isinstance(event, Executions):
            self._add_executions(event.rows)
        else:
            self._add(event)
        if self._is_due(event):
            self.flush()

    def flush(self) -> None:
        """End the segment: everything written so far can be read from the sink. Does nothing when
        nothing is pending.

        Raises:
            CaptureFileError: one event is larger than a segment may be (64 MiB, or 2**20 stacks,
                names or strings).
            OSError: from the sink. After either the writer takes nothing more.
        """
        self._require_open()
        if self._segment.order:
            self._state = "failed"
            self._put(b"".join(self._blocks()))
            self._state = "open"
            self._segment = _Segment()
            self._preamble = []
            self._bound_dictionary()

    def close(self) -> None:
        """Flush and write the end block. Does nothing when closed already, or failed: such a file
        has no end block.
        """
        if not self.is_open:
            return
        self.flush()
        self._state = "failed"
        self._put(self._seal(Kind.END, 0, b""))
        self._state = "closed"

    def _add_calls(self, rows: CallArray) -> None:
        if rows.ndim != 1:
            raise CaptureFileError(f"expected calls of shape (rows,), found {rows.shape}")
        if self._call_schema is None or self._call_schema.dtype != rows.dtype:
            schema = describe("calls", rows.dtype)
            self.flush()
            self._call_schema = schema
            self._preamble.append((Kind.SCHEMA, _json({str(int(Kind.CALLS)): schema.to_json()})))
        for part in _parts(rows, _BATCH_BYTES):
            self._segment.add(Kind.CALLS, len(part), {Kind.CALLS: part.copy()})
            if self._segment.size_bytes >= _FLUSH_BYTES:
                self.flush()

    def _add_executions(self, rows: ExecutionArray) -> None:
        for part in _parts(rows, _BATCH_BYTES):
            self._add(Executions(part))
            if self._segment.size_bytes >= _FLUSH_BYTES:
                self.flush()

    def _add(self, event: Event) -> None:
        encoded = encode_event(event, self._dictionary)
        self._segment.add(encoded.kind, encoded.rows, encoded.tables)

    def _is_due(self, event: Event) -> bool:
        pending_bytes = self._segment.size_bytes + self._dictionary.new_bytes
        if pending_bytes >= _FLUSH_BYTES or len(self._segment.order) >= _FLUSH_EVENTS:
            return True
        if not isinstance(event, Watermark):
            return False
        last_ns = self._last_flush_ns
        if last_ns is not None and event.time_ns - last_ns < self._flush_after_ns:
            return False
        self._last_flush_ns = event.time_ns
        return True

    def _blocks(self) -> Iterator[bytes]:
        """The blocks of the pending segment; `EVENTS` is the last, since it is what makes the
        segment whole.
        """
        tables = {**self._dictionary.take_new(), **self._segment.take()}
        _check_segment(tables, self._dictionary)
        for kind, raw in self._preamble:
            yield self._seal(kind, len(raw), raw)
        for kind, table in tables.items():
            schema = self._schema(kind)
            for part in _parts(table, _BLOCK_BYTES) if len(table) else ():
                yield self._seal(kind, len(part), schema.pack(part))

    def _schema(self, kind: Kind) -> TableSchema:
        return self._call_schema if kind is Kind.CALLS and self._call_schema else TABLES[kind]

    def _seal(self, kind: Kind, rows: int, raw: bytes) -> bytes:
        """A block, compressed when that is smaller, with its place in the chain of checksums."""
        packed = self._compressor.compress(raw)
        encoding, payload = (
            (Encoding.ZSTD, packed) if len(packed) < len(raw) else (Encoding.PLAIN, raw)
        )
        block, self._crc32 = fmt.seal_block(
            kind,
            encoding,
            rows=rows,
            raw_bytes=len(raw),
            payload=payload,
            previous_crc32=self._crc32,
        )
        return block

    def _bound_dictionary(self) -> None:
        """A recording may last for weeks: from time to time reader and writer forget all strings
        and frames.
        """
        if (
            self._dictionary.entries >= _DICTIONARY_ENTRIES
            or self._dictionary.string_bytes >= _DICTIONARY_BYTES
        ):
            self._dictionary = WriteDictionary()
            self._preamble.append((Kind.RESET, b""))

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written_bytes = self._sink.write(view)
            if not written_bytes:
                raise CaptureFileError("the sink takes no bytes: record into a blocking file")
            self._written_bytes += written_bytes
            view = view[written_bytes:]

    def _require_open(self) -> None:
        if not self.is_open:
            raise CaptureFileError(
                f"the capture writer is {self._state}: open a new one to record further events"
            )


class _Segment:
    """Events that are not in the file yet: their order, and their rows by table."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []
        self.size_bytes = 0
        self._tables: dict[Kind, list[NDArray[Any]]] = {}

    def add(self, kind: Kind, rows: int, tables: Mapping[Kind, NDArray[Any]]) -> None:
        """Append one event of `rows` rows of `kind`."""
        self.order.append((kind, rows))
        for each, table in tables.items():
            self._tables.setdefault(each, []).append(table)
            self.size_bytes += table.nbytes

    def take(self) -> dict[Kind, NDArray[Any]]:
        """One array a table, `EVENTS` last."""
        tables = {kind: join_rows(parts) for kind, parts in sorted(self._tables.items())}
        tables[Kind.EVENTS] = np.array(self.order, dtype=table_dtype(Kind.EVENTS))
        return tables


def _parts(rows: NDArray[Any], limit_bytes: int) -> Iterator[NDArray[Any]]:
    """Slices of at most `limit_bytes`; one empty slice for no rows."""
    step = limit_bytes // rows.dtype.itemsize
    for start in range(0, max(len(rows), 1), step):
        yield rows[start : start + step]


def _check_segment(tables: Mapping[Kind, NDArray[Any]], dictionary: WriteDictionary) -> None:
    """What a reader refuses must not be written."""
    size_bytes = max(sum(table.nbytes for table in tables.values()), dictionary.string_bytes)
    if size_bytes > fmt.MAX_SEGMENT_BYTES:
        raise CaptureFileError(
            f"one event of {size_bytes} bytes: a capture file takes {fmt.MAX_SEGMENT_BYTES}"
        )
    rows = {kind: len(table) for kind, table in tables.items() if kind not in BYTE_TABLES}
    if max(dictionary.entries, *rows.values()) > fmt.MAX_OBJECT_ROWS:
        raise CaptureFileError(
            f"one event of too many parts: a capture file takes {fmt.MAX_OBJECT_ROWS}, found {rows}"
        )


def _header(created: Mapping[str, str]) -> bytes:
    kinds = {str(int(kind)): schema.to_json() for kind, schema in TABLES.items()}
    return _json({"created": dict(created), "kinds": kinds})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode("ascii")
