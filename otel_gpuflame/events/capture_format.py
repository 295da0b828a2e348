"""The byte layout of a capture file: magic, versions, block header, kinds, limits.
`docs/capture-format.md` is the spec.

Nothing here reads or writes; the numbers are a contract with files that already exist and are never
reused.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from otel_gpuflame.errors import CaptureFileError

MAGIC = b"\x89OGFCAP\n"
"""High bit first and a newline last, so that a transfer that strips bits or rewrites newlines shows
at once."""

MAJOR_VERSION = 1
MINOR_VERSION = 4

PROLOGUE = struct.Struct("<8sHHII")
"""magic, major, minor, header_bytes, crc32 (of the 16 bytes before it, then the header)."""

BLOCK_HEADER = struct.Struct("<HBBIIII")
"""kind, encoding, reserved (0), rows, raw_bytes, stored_bytes, crc32 (of the 16 bytes before it,
then the payload, started from the crc32 of the block before: a lost, repeated or swapped block does
not go unnoticed)."""

CRC_BYTES = 4

MAX_HEADER_BYTES = 1 << 20
MAX_SEGMENT_BYTES = 64 << 20
"""Bounds the arrays of one segment, which is what a reader holds at a time, and so each block."""
MAX_SEGMENT_EVENTS = 1 << 17
"""Bounds the events of one segment: even an empty batch takes an object."""
MAX_OBJECT_ROWS = 1 << 20
"""Bounds, per segment, the rows of each table whose rows become Python objects; and, since the last
reset, the strings and the frames. An object takes some 100 bytes where its row may take 4."""
MAX_DICTIONARY_BYTES = 128 << 20
"""Bounds the string bytes since the last reset."""


class Encoding(IntEnum):
    """How the payload of a block is stored."""

    PLAIN = 0
    ZSTD = 1


class Kind(IntEnum):
    """Kinds of blocks. Below 16: structure and dictionary. From 16: tables of events, which
    `EVENTS` puts in order.
    """

    SCHEMA = 1
    END = 2
    RESET = 3
    EVENTS = 4
    STRINGS = 5
    STRING_BYTES = 6
    FRAMES = 7
    STACK_FRAMES = 8
    TARGET_ATTRIBUTES = 9
    COUNTER_VALUES = 10
    START_ATTRIBUTES = 11
    CAPTURE_STARTS = 16
    CALLS = 17
    STACKS = 18
    NAMES = 19
    TARGETS = 20
    COUNTERS = 21
    WATERMARKS = 22
    PROCESSES_ENDED = 23
    SAMPLING_WINDOWS = 24
    STACKS_FORGOTTEN = 25
    EXECUTIONS = 26
    DEVICES = 27
    EXECUTIONS_BEGIN = 28
    EXECUTIONS_END = 29
    EXECUTION_WATERMARKS = 30
    DEVICE_METRICS = 31
    DEVICE_ERRORS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """The 20 bytes before a payload; `crc32` is what the file says, not what was computed."""

    kind: int
    encoding: int
    rows: int
    raw_bytes: int
    stored_bytes: int
    crc32: int
    reserved: int = 0

    @classmethod
    def unpack(cls, data: bytes) -> BlockHeader:
        """Take apart exactly `BLOCK_HEADER.size` bytes; judging the values is left to the
        reader.
        """
        kind, encoding, reserved, rows, raw_bytes, stored_bytes, crc32 = BLOCK_HEADER.unpack(data)
        return cls(
            kind=kind,
            encoding=encoding,
            reserved=reserved,
            rows=rows,
            raw_bytes=raw_bytes,
            stored_bytes=stored_bytes,
            crc32=crc32,
        )


def kind_name(kind: int) -> str:
    """How a message names a block kind: `calls (17)`, or `unknown (900)`."""
    try:
        return f"{Kind(kind).name.lower()} ({kind})"
    except ValueError:
        return f"unknown ({kind})"


def seal_block(
    kind: int, encoding: Encoding, *, rows: int, raw_bytes: int, payload: bytes, previous_crc32: int
) -> tuple[bytes, int]:
    """A whole block and its crc32, which the next block starts from."""
    fields = (kind, encoding, 0, rows, raw_bytes, len(payload))
    head = BLOCK_HEADER.pack(*fields, 0)[:-CRC_BYTES]
    crc32 = zlib.crc32(payload, zlib.crc32(head, previous_crc32))
    return head + struct.pack("<I", crc32) + payload, crc32


def seal_header(header: bytes) -> tuple[bytes, int]:
    """Prologue and header of a file, and the crc32 that its first block starts from."""
    if len(header) > MAX_HEADER_BYTES:
        raise CaptureFileError(
            f"the header of a capture is {len(header)} bytes, more than {MAX_HEADER_BYTES}: "
            "give `created` fewer or shorter entries"
        )
    head = PROLOGUE.pack(MAGIC, MAJOR_VERSION, MINOR_VERSION, len(header), 0)[:-CRC_BYTES]
    crc32 = zlib.crc32(header, zlib.crc32(head))
    return head + struct.pack("<I", crc32) + header, crc32
