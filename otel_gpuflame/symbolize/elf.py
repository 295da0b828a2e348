"""Headers of 64-bit little-endian ELF files. Everything in such a file is untrusted: sizes are
checked and bounded.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Protocol

from otel_gpuflame.errors import OtelGpuflameError

PT_LOAD = 1
PT_INTERP = 3
PT_NOTE = 4
PT_TLS = 7
PF_X = 1
SHT_SYMTAB = 2
SHT_RELA = 4
SHT_DYNSYM = 11
SHT_GNU_HASH = 0x6FFFFFF6
EM_X86_64 = 62
EM_AARCH64 = 183
ET_EXEC = 2
ET_DYN = 3

MAX_SECTIONS = 1 << 16
MAX_SEGMENTS = 1 << 12
MAX_NOTE_BYTES = 1 << 16
MAX_BUILD_ID_BYTES = 64
_PAGE_BYTES = 4096
_NT_GNU_BUILD_ID = 3

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")


class ElfError(OtelGpuflameError):
    """The file is not an ELF file that can be read; the message says what is wrong with it."""


class ElfBytes(Protocol):
    """Random access to the bytes of an ELF file."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file or where reading fails."""
        ...


class FileBytes:
    """A file by descriptor, which it owns.

    Read with `pread`, not mapped: a mapped file that somebody truncates kills the reader with
    SIGBUS.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        """See `ElfBytes`."""
        if not 0 <= offset < 1 << 62 or size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""

    def __del__(self) -> None:
        os.close(self._fd)


class MemoryBytes:
    """An ELF image already in memory ([vdso])."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        """See `ElfBytes`."""
        return self._data[offset : offset + size] if offset >= 0 and size > 0 else b""


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header."""

    type: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int
    align: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section header; `link` is the index of the string or symbol table that belongs to it."""

    type: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class ElfHeaders:
    """What the headers say; `build_id` is lower-case hex, empty where there is none."""

    type: int
    machine: int
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]
    build_id: str

    def address_of(self, file_offset: int) -> int | None:
        """ELF address of a byte of the file that is mapped as code."""
        for segment in self._code_segments():
            if segment.offset <= file_offset < segment.offset + segment.file_bytes:
                return segment.address + file_offset - segment.offset
        return None

    def bias_of(self, start: int, file_offset: int) -> int | None:
        """Run-time address minus ELF address, from a code mapping that shows `file_offset` at
        `start`.
        """
        for segment in self._code_segments():
            first_page = segment.offset & -_PAGE_BYTES
            if first_page <= file_offset < segment.offset + segment.file_bytes:
                return start - file_offset + segment.offset - segment.address
        return None

    def section_of(self, section_type: int) -> Section | None:
        """The first section of a type: of symbol and hash tables ELF allows one, and a hostile file
        has thousands of them.
        """
        return next((each for each in self.sections if each.type == section_type), None)

    def sections_of(self, section_type: int, most: int) -> list[Section]:
        """The first `most` sections of a type, in file order."""
        return [section for section in self.sections if section.type == section_type][:most]

    def linked(self, section: Section) -> Section | None:
        """The section that `section` refers to."""
        return self.sections[section.link] if 0 < section.link < len(self.sections) else None

    def _code_segments(self) -> list[Segment]:
        return [each for each in self.segments if each.type == PT_LOAD and each.flags & PF_X]


def read_headers(data: ElfBytes) -> ElfHeaders:
    """Headers and build id.

    Raises: ElfError: not a 64-bit little-endian ELF program or library, or its header tables are
    outside the file.
    """
    raw = data.read(0, _HEADER.size)
    if len(raw) < _HEADER.size or raw[:4] != b"\x7fELF":
        raise ElfError("not an ELF file")
    if raw[4:6] != b"\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file, the only kind that is symbolised")
    _, kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = (
        _HEADER.unpack(raw)
    )
    if kind not in (ET_EXEC, ET_DYN):
        raise ElfError("neither an ELF program nor a shared library")
    segments = tuple(
        Segment(type_, flags, offset, address, file_bytes, memory_bytes, align)
        for type_, flags, offset, address, _, file_bytes, memory_bytes, align in _table(
            data, _Table(phoff, min(phnum, MAX_SEGMENTS), phentsize, _SEGMENT)
        )
    )
    sections = _sections(data, shoff, shnum, shentsize)
    return ElfHeaders(kind, machine, segments, sections, _build_id(data, segments))


@dataclass(frozen=True, slots=True)
class _Table:
    offset: int
    count: int
    entry_bytes: int
    entry: struct.Struct


def _table(data: ElfBytes, table: _Table) -> list[tuple[int, ...]]:
    if table.count == 0:
        return []
    if table.entry_bytes != table.entry.size:
        raise ElfError(
            f"header table entries of {table.entry_bytes} bytes instead of {table.entry.size}"
        )
    raw = data.read(table.offset, table.count * table.entry_bytes)
    if len(raw) < table.count * table.entry_bytes:
        raise ElfError("the file ends inside a header table: truncated?")
    return list(table.entry.iter_unpack(raw))


def _sections(data: ElfBytes, offset: int, count: int, entry_bytes: int) -> tuple[Section, ...]:
    if offset == 0:
        return ()
    if count == 0:
        # 65,280 sections or more: the number is in the size field of section 0.
        first = _table(data, _Table(offset, 1, entry_bytes, _SECTION))
        count = first[0][5]
    if count > MAX_SECTIONS:
        raise ElfError(f"{count} sections, more than the {MAX_SECTIONS} that are read")
    rows = _table(data, _Table(offset, count, entry_bytes, _SECTION))
    return tuple(Section(type=row[1], offset=row[4], size=row[5], link=row[6]) for row in rows)


def _build_id(data: ElfBytes, segments: tuple[Segment, ...]) -> str:
    for segment in segments:
        if segment.type == PT_NOTE:
            found = _build_id_note(
                data.read(segment.offset, min(segment.file_bytes, MAX_NOTE_BYTES)), segment.align
            )
            if found:
                return found
    return ""


def _build_id_note(notes: bytes, align: int) -> str:
    step = 8 if align == 8 else 4
    position = 0
    while position + _NOTE.size <= len(notes):
        name_bytes, value_bytes, kind = _NOTE.unpack_from(notes, position)
        name_at = position + _NOTE.size
        value_at = name_at + (name_bytes + step - 1) // step * step
        if (
            kind == _NT_GNU_BUILD_ID
            and notes[name_at : name_at + 4] == b"GNU\0"
            and name_bytes == 4
        ):
            return notes[value_at : value_at + min(value_bytes, MAX_BUILD_ID_BYTES)].hex()
        position = value_at + (value_bytes + step - 1) // step * step
    return ""
