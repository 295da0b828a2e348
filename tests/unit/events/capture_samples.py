"""Events, captures and hand-made blocks for the tests of the capture file."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_reader import CaptureReader, read_capture
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetricArray, DeviceMetrics
from otel_gpuflame.events.executions import (
    EXECUTION,
    DeviceInfo,
    Devices,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey, mark
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    HandleName,
    LossCount,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    TargetInfo,
    Targets,
    Watermark,
)

PROCESS = ProcessKey(4242, 123_456_789)
START = CaptureStart(1_000, 1_700_000_000_000_000_000, (("host.name", "h"), ("os.type", "linux")))


def calls(count: int, *, seed: int = 0, dtype: np.dtype[Any] = wire.CALL) -> CallArray:
    """`count` rows of random bytes, but of times that a capture can have."""
    data = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    rows = np.frombuffer(data, dtype=dtype).copy()
    for name in {"start_ns", "end_ns", "time_ns"} & set(dtype.names or ()):
        rows[name] >>= np.uint64(8)
    return rows


def executions(count: int, *, seed: int = 0) -> ExecutionArray:
    """`count` rows of random numbers; what is between the columns is 0, as in a file that was read."""
    return _columns(EXECUTION, count, seed)


def device_metrics(count: int, *, seed: int = 0) -> DeviceMetricArray:
    """As `executions`."""
    return _columns(DEVICE_METRIC, count, seed)


def _columns(dtype: np.dtype[Any], count: int, seed: int) -> NDArray[Any]:
    rows = np.zeros(count, dtype)
    random = calls(count, seed=seed, dtype=dtype)
    for name in dtype.names or ():
        rows[name] = random[name]
    return rows


def small_recording() -> list[Event]:
    """Every kind of event, in two segments."""
    python = Frame(FrameKind.PYTHON, "train", file="/srv/träin.py", line=88)
    native = Frame(
        FrameKind.NATIVE, "f()", "_Z1fv", module="/l.so", build_id="ab", address=2**64 - 1
    )
    first = Stack(StackKey(2**64 - 1, 1), PROCESS, (python, native))
    second = Stack(StackKey(3, 4), PROCESS, (python, mark("spin")))
    return [
        START,
        Targets((TargetInfo(PROCESS, (("process.pid", 4242), ("service.name", "träin"))),)),
        Names((HandleName(PROCESS, 1_001, 2**64 - 1, "_Z4gemmv", "gemm()"),)),
        Stacks((first,)),
        Calls(calls(3, seed=1)),
        Calls(calls(0)),
        Calls(calls(1, seed=2)),
        SamplingWindow(1_000, 9_000, 1_500, 3_500, 200_000_000),
        SamplingWindow(9_000, 19_000, 10_500, 13_500, 200_000_000, with_waits=True),
        SamplingWindow(19_000, 29_000, 20_500, 23_500, 200_000_000, with_graph_launches=True),
        Watermark(2_000),
        Stacks((second,)),
        Calls(calls(2, seed=3)),
        SourceCounters(2_500, (LossCount("launch", "seen", 6), LossCount("launch", "sent", 6))),
        StacksForgotten((StackKey(3, 4),)),
        Devices((DeviceInfo(index=3, uuid="GPU-1", model="H", multiprocessors=132),)),
        ExecutionsBegin(PROCESS, 1_100),
        Executions(executions(2, seed=4)),
        ExecutionWatermark(PROCESS, 2_600),
        ExecutionsEnd(PROCESS, 2_700, "ring_full"),
        DeviceMetrics(device_metrics(3, seed=5)),
        DeviceErrors(
            (DeviceError(time_ns=5, device=3, bus_id="0000:3b:00.0", code=31, message="x"),)
        ),
        ProcessesEnded((PROCESS,)),
        Watermark(3_000),
    ]


def capture_bytes(events: Iterable[Event], *, flush_after_ns: int = 0) -> bytes:
    """A whole capture of `events`."""
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={"version": "test"}, flush_after_ns=flush_after_ns)
    for event in events:
        writer.write(event)
    writer.close()
    return sink.getvalue()


def read_all(data: bytes) -> tuple[list[Event], CaptureReader]:
    """All events that can be read from `data`, and the exhausted reader."""
    reader = read_capture(io.BytesIO(data))
    return list(reader), reader


def same(left: Event, right: Event) -> bool:
    """Whether two events are equal, arrays byte by byte."""
    if isinstance(left, (Calls, Executions, DeviceMetrics)) and isinstance(right, type(left)):
        return left.rows.dtype == right.rows.dtype and left.rows.tobytes() == right.rows.tobytes()
    return left == right


def assert_same(found: Sequence[Event], expected: Sequence[Event]) -> None:
    """Fail unless both lists hold equal events in equal order."""
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert same(left, right), (left, right)


def is_prefix(found: list[Event], expected: list[Event]) -> bool:
    """Whether `found` is how `expected` begins."""
    return len(found) <= len(expected) and all(map(same, found, expected))


def split(data: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Prologue with header, and (kind, block) in file order, by the documented layout."""
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    offset = 20 + header_bytes
    head, blocks = data[:offset], []
    while offset < len(data):
        kind, _, _, _, _, stored_bytes, _ = struct.unpack_from("<HBBIIII", data, offset)
        end = offset + 20 + stored_bytes
        blocks.append((kind, data[offset:end]))
        offset = end
    return head, blocks


def forge(head: bytes, blocks: Iterable[bytes]) -> bytes:
    """A file with valid checksums over whatever the blocks claim."""
    body = head[:16] + struct.pack("<I", zlib.crc32(head[20:], zlib.crc32(head[:16]))) + head[20:]
    chain = zlib.crc32(head[20:], zlib.crc32(head[:16]))
    for block in blocks:
        chain = zlib.crc32(block[20:], zlib.crc32(block[:16], chain))
        body += block[:16] + struct.pack("<I", chain) + block[20:]
    return body


def block(kind: int, rows: int, raw: bytes, **claims: int) -> bytes:
    """A block whose checksum `forge` fills in; `claims` replace header fields by name."""
    fields = {
        "kind": kind,
        "encoding": 0,
        "reserved": 0,
        "rows": rows,
        "raw_bytes": len(raw),
        "stored_bytes": len(raw),
    }
    fields.update(claims)
    return struct.pack("<HBBIIII", *fields.values(), 0) + raw


def packed(kind: int, rows: int, raw: bytes, **claims: int) -> bytes:
    """As `block`, compressed."""
    stored = zstandard.compress(raw)
    return block(kind, rows, stored, **{"encoding": 1, "raw_bytes": len(raw), **claims})


def with_header(head: bytes, **changes: Any) -> bytes:
    """`head` with keys of its JSON replaced."""
    header = {**json.loads(head[20:]), **changes}
    text = json.dumps(header).encode()
    return head[:12] + struct.pack("<II", len(text), 0) + text


def events_block(*entries: tuple[int, int]) -> bytes:
    """The block that ends a segment."""
    kinds = np.array([kind for kind, _ in entries], "<u2")
    rows = np.array([rows for _, rows in entries], "<u4")
    return block(Kind.EVENTS, len(entries), shuffled(kinds) + shuffled(rows))


def shuffled(column: np.ndarray[Any, Any]) -> bytes:
    """Byte planes of a column."""
    return np.ascontiguousarray(column).view("u1").reshape(len(column), column.itemsize).T.tobytes()


def offsets_of(blocks: Iterable[tuple[int, bytes]], head: bytes) -> Iterator[int]:
    """Where each block begins."""
    offset = len(head)
    for _, data in blocks:
        yield offset
        offset += len(data)
