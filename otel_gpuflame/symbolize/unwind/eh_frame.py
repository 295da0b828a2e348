"""Where an ELF file keeps its `.eh_frame`, found by what the loader maps: stripped files and [vdso] have it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_gpuflame.symbolize.elf import (
    EM_X86_64,
    PF_X,
    PT_LOAD,
    ElfBytes,
    ElfError,
    ElfHeaders,
    Segment,
)

MAX_SECTION_BYTES: Final = 512 << 20
"""libtorch_cpu.so has 24 MiB of it."""
_MAX_CODE_BYTES: Final = (1 << 32) - 1
"""Rows hold 32-bit addresses."""
_PT_GNU_EH_FRAME: Final = 0x6474E550
_HEADER_BYTES: Final = 8
_PCREL_SDATA4: Final = 0x1B


class UnwindError(ElfError):
    """The file has no unwind information that can be used; the message says why."""


@dataclass(frozen=True, slots=True)
class EhFramePlace:
    """Where the section is in the file, and the ELF addresses of itself and of the code that it is about."""

    offset: int
    size: int
    address: int
    code_start: int
    code_end: int


@dataclass(frozen=True, slots=True)
class EhFrame:
    """The section's bytes, and the ELF addresses that they are about."""

    data: bytes
    address: int
    code_start: int
    code_end: int


def find_eh_frame(data: ElfBytes, headers: ElfHeaders) -> EhFramePlace:
    """Where it is. Raises UnwindError: there is none, or not one of an x86-64 file."""
    if headers.machine != EM_X86_64:
        raise UnwindError("unwind tables are made for x86-64 only")
    code = [each for each in headers.segments if each.type == PT_LOAD and each.flags & PF_X]
    if not code:
        raise UnwindError("no code")
    code_start = min(each.address for each in code)
    code_end = max(each.address + each.file_bytes for each in code)
    if code_end - code_start > _MAX_CODE_BYTES:
        raise UnwindError("more than 4 GiB of code")
    address = _address_of_section(data, headers)
    segment = _segment_with(headers, address)
    offset = address - segment.address + segment.offset
    size = min(_size(headers, offset, segment), MAX_SECTION_BYTES)
    return EhFramePlace(offset, size, address, code_start, code_end)


def read_eh_frame(data: ElfBytes, headers: ElfHeaders) -> EhFrame:
    """The section. Raises UnwindError."""
    place = find_eh_frame(data, headers)
    content = data.read(place.offset, place.size)
    if len(content) < place.size:
        raise UnwindError("the file ends inside .eh_frame")
    return EhFrame(content, place.address, place.code_start, place.code_end)


def _address_of_section(data: ElfBytes, headers: ElfHeaders) -> int:
    """From .eh_frame_hdr, whose place the program headers tell."""
    header = next((each for each in headers.segments if each.type == _PT_GNU_EH_FRAME), None)
    if header is None:
        raise UnwindError("no .eh_frame_hdr")
    raw = data.read(header.offset, _HEADER_BYTES)
    # Version, encodings of the address, of the count, and of the search table, which is not read.
    if len(raw) < _HEADER_BYTES or raw[0] != 1 or raw[1] != _PCREL_SDATA4:
        raise UnwindError("a form of .eh_frame_hdr that no linker writes")
    return header.address + 4 + int.from_bytes(raw[4:8], "little", signed=True)


def _segment_with(headers: ElfHeaders, address: int) -> Segment:
    for segment in headers.segments:
        if (
            segment.type == PT_LOAD
            and segment.address <= address < segment.address + segment.file_bytes
        ):
            return segment
    raise UnwindError(".eh_frame_hdr points to nothing that is loaded")


def _size(headers: ElfHeaders, offset: int, segment: Segment) -> int:
    """As the section table says; without one up to the end of the segment, where parsing stops at the first entry that
    is none.
    """
    for section in headers.sections:
        if section.offset == offset and section.size:
            return section.size
    return segment.offset + segment.file_bytes - offset
