"""Takes blocks off a capture file: lengths, checksum chain and decompression, each checked before
memory is spent.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import zstandard

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import capture_format as fmt
from otel_gpuflame.events.capture_format import BlockHeader, Encoding, kind_name


class ByteStream(Protocol):
    """Where the bytes come from: a file opened for binary reading, a pipe, a BytesIO. Need not be
    seekable.
    """

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


class DamageError(CaptureFileError):
    """The file makes no sense from some offset on; what lies before it is good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block whose checksum is right. `stored` is still compressed: blocks of unknown kinds stay
    so.
    """

    offset: int
    header: BlockHeader
    stored: bytes

    @property
    def kind(self) -> int:
        """Number of the kind, known or not."""
        return self.header.kind

    def payload(self) -> bytes:
        """The `raw_bytes` bytes of the block; raises DamageError."""
        if self.header.encoding == Encoding.PLAIN:
            return self.stored
        try:
            return self._decompress()
        except zstandard.ZstdError as error:
            raise self.damage(
                f"expected one zstd frame of {self.header.raw_bytes} bytes: {error}"
            ) from error

    def damage(self, expected: str) -> DamageError:
        """An error that names this block."""
        return _damage(self.offset, self.header, expected)

    def _decompress(self) -> bytes:
        """python-zstandard allocates what the frame claims, whatever `max_output_size` says: so ask
        the frame first.
        """
        raw_bytes = self.header.raw_bytes
        claimed_bytes = zstandard.frame_content_size(self.stored)
        if claimed_bytes != raw_bytes:
            raise self.damage(
                f"expected one zstd frame of {raw_bytes} bytes, found one of {claimed_bytes}"
            )
        raw = zstandard.ZstdDecompressor().decompress(
            self.stored, max_output_size=raw_bytes, allow_extra_data=False
        )
        if len(raw) != raw_bytes:
            raise self.damage(f"expected {raw_bytes} bytes, found {len(raw)}")
        return raw


class BlockStream:
    """The file header, then one block after the other."""

    def __init__(self, stream: ByteStream) -> None:
        """Read and check the header; raises CaptureFileError when nothing can be read."""
        self._stream = stream
        self.bytes_read = 0
        self.version, self._crc32, self.header = self._read_header()

    def next_block(self) -> Block:
        """The next block, of any kind; raises DamageError, also when there is none."""
        offset = self.bytes_read
        data = self._read(fmt.BLOCK_HEADER.size)
        if not data:
            raise DamageError(
                f"at offset {offset}: expected a block, found the end of the file: "
                "the recording was cut off"
            )
        if len(data) < fmt.BLOCK_HEADER.size:
            raise DamageError(
                f"at offset {offset}: expected {fmt.BLOCK_HEADER.size} bytes of block header, "
                f"found {len(data)}"
            )
        header = BlockHeader.unpack(data)
        _check_claims(offset, header)
        stored = self._read(header.stored_bytes)
        if len(stored) < header.stored_bytes:
            raise _damage(
                offset, header, f"expected {header.stored_bytes} bytes, found {len(stored)}"
            )
        crc32 = zlib.crc32(stored, zlib.crc32(data[: -fmt.CRC_BYTES], self._crc32))
        if crc32 != header.crc32:
            raise _damage(
                offset, header, f"expected checksum {header.crc32:08x}, found {crc32:08x}"
            )
        self._crc32 = crc32
        return Block(offset=offset, header=header, stored=stored)

    def require_end(self) -> None:
        """Nothing may follow the end block; raises DamageError."""
        offset = self.bytes_read
        if self._read(1):
            raise DamageError(
                f"at offset {offset}: expected the end of the file, found further bytes"
            )

    def _read_header(self) -> tuple[tuple[int, int], int, dict[str, Any]]:
        prologue = self._read(fmt.PROLOGUE.size)
        magic = prologue[: len(fmt.MAGIC)]
        if magic != fmt.MAGIC:
            raise CaptureFileError(
                f"not a capture file: it starts with {magic!r}, a capture with {fmt.MAGIC!r}"
            )
        if len(prologue) < fmt.PROLOGUE.size:
            raise CaptureFileError(
                f"the capture ends after {len(prologue)} bytes, inside its header"
            )
        _, major, minor, header_bytes, crc32 = fmt.PROLOGUE.unpack(prologue)
        _check_version(major, minor)
        if header_bytes > fmt.MAX_HEADER_BYTES:
            raise CaptureFileError(
                f"the capture claims {header_bytes} bytes of header, limit {fmt.MAX_HEADER_BYTES}"
            )
        header = self._read(header_bytes)
        if len(header) < header_bytes:
            raise CaptureFileError(
                f"the capture ends after {self.bytes_read} bytes, inside its header"
            )
        if zlib.crc32(header, zlib.crc32(prologue[: -fmt.CRC_BYTES])) != crc32:
            raise CaptureFileError(
                "the header of the capture is damaged: its checksum does not match"
            )
        return (major, minor), crc32, parse_json(header)

    def _read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end of the stream: a pipe may give less than asked
        for.
        """
        parts, missing = [], size
        while missing and (part := self._stream.read(missing)):
            parts.append(part)
            missing -= len(part)
        data = b"".join(parts)
        self.bytes_read += len(data)
        return data


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object; raises CaptureFileError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CaptureFileError(f"expected JSON in the capture: {error}") from error
    if not isinstance(value, dict):
        raise CaptureFileError(
            f"expected a JSON object in the capture, found {type(value).__name__}"
        )
    return value


def _check_version(major: int, minor: int) -> None:
    if major != fmt.MAJOR_VERSION:
        raise CaptureFileError(
            f"the capture has format version {major}.{minor}, this program reads "
            f"{fmt.MAJOR_VERSION}.x: use a version of otel_gpuflame that reads format {major}"
        )


def _check_claims(offset: int, header: BlockHeader) -> None:
    """What must hold before a byte of the payload is read: nothing may be allocated on the word of
    the file.
    """
    if header.reserved or header.encoding not in tuple(Encoding):
        raise _damage(
            offset, header, f"unknown encoding {header.encoding} or reserved byte {header.reserved}"
        )
    if header.raw_bytes > fmt.MAX_SEGMENT_BYTES:
        raise _damage(
            offset,
            header,
            f"expected at most {fmt.MAX_SEGMENT_BYTES} bytes, found {header.raw_bytes}",
        )
    expected_bytes = header.raw_bytes
    if header.stored_bytes > expected_bytes or (
        header.encoding == Encoding.PLAIN and header.stored_bytes != expected_bytes
    ):
        raise _damage(
            offset, header, f"{header.stored_bytes} stored bytes cannot make {expected_bytes}"
        )


def _damage(offset: int, header: BlockHeader, expected: str) -> DamageError:
    return DamageError(f"at offset {offset}, block {kind_name(header.kind)}: {expected}")
