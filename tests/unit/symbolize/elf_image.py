"""ELF images with the sections that a test wants, as no linker makes them."""

from __future__ import annotations

import struct

from otel_gpuflame.symbolize.elf import EM_X86_64, ET_DYN, PF_X, PT_LOAD

_STRINGS = 3
_HEADER_BYTES, _SEGMENT_BYTES, _SECTION_BYTES = 64, 56, 64


def elf_image(strings: bytes, *sections: tuple[int, bytes], repeated: int = 1) -> bytes:
    """A shared library with a string table and sections of (type, contents) that refer to it, mapped whole as code.

    The headers of these sections stand there `repeated` times, for the same bytes.
    """
    at = _HEADER_BYTES + _SEGMENT_BYTES
    rows = [bytes(_SECTION_BYTES), _section(_STRINGS, at, len(strings))]
    at += len(strings)
    for kind, contents in sections:
        rows += [_section(kind, at, len(contents))] * repeated
        at += len(contents)
    head = struct.pack("<16sHHI", b"\x7fELF\x02\x01\x01", ET_DYN, EM_X86_64, 1)
    head += struct.pack("<QQQI", 0, _HEADER_BYTES, at, 0)
    head += struct.pack("<HHHHHH", _HEADER_BYTES, _SEGMENT_BYTES, 1, _SECTION_BYTES, len(rows), 0)
    segment = struct.pack("<IIQQQQQQ", PT_LOAD, PF_X, 0, 0, 0, at, at, 4096)
    return b"".join((head, segment, strings, *(each for _, each in sections), *rows))


def _section(kind: int, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, 1, 0, 0, 0)
