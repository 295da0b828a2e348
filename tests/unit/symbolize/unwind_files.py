"""ELF files with unwind information for tests: those of this machine, and one made by hand."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import numpy as np

from otel_gpuflame.events.wire import RuleKind, RuleShift
from otel_gpuflame.symbolize.elf import FileBytes, read_headers
from otel_gpuflame.symbolize.maps import parse_maps
from otel_gpuflame.symbolize.unwind.eh_frame import EhFrame, read_eh_frame
from otel_gpuflame.symbolize.unwind.table import UnwindTable, build_table

CODE_START, CODE_END, SECTION = 0x1000, 0x9000, 0x20000
"""Of sections made by `section_of`."""


def eh_frame_of(path: Path) -> EhFrame:
    """The section of a file."""
    data = FileBytes(os.open(path, os.O_RDONLY))
    return read_eh_frame(data, read_headers(data))


def mapped_library(beginning: str) -> Path:
    """A library of this process whose name begins so; numpy brings OpenBLAS and libstdc++ with it."""
    assert np.ones((2, 2)) @ np.ones((2, 2)) is not None
    for mapping in parse_maps(Path("/proc/self/maps").read_bytes()):
        if mapping.path.rpartition("/")[2].startswith(beginning):
            return Path(mapping.path)
    raise LookupError(beginning)


def interpreter() -> Path:
    """The file with CPython's code: libpython, or the program itself where it is linked into it."""
    try:
        return mapped_library("libpython3")
    except LookupError:
        return Path(sys.executable).resolve()


def uleb(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def entry(content: bytes) -> bytes:
    """An entry with its length in front, padded with DW_CFA_nop."""
    content += bytes(-(len(content) + 4) % 8)
    return struct.pack("<I", len(content)) + content


DEFAULT = bytes([0x0C, 7, 8, 0x80 | 16, 1])
"""CFA = rsp + 8, the return address below it."""


def common(initial: bytes = DEFAULT, augmentation: bytes = b"zR", data: bytes = b"\x03") -> bytes:
    """A CIE: code in steps of 1, data in steps of -8; addresses absolute in 4 bytes, unless `data` says otherwise."""
    content = bytes(4) + b"\x01" + augmentation + b"\0" + b"\x01\x78\x10"
    if augmentation.startswith(b"z"):
        content += uleb(len(data)) + data
    return entry(content + initial)


def function(at: int, start: int, size: int, code: bytes = b"", cie: int = 0) -> bytes:
    """A FDE that will stand at `at` in the section and refers to the CIE at `cie`."""
    return entry(struct.pack("<III", at + 4 - cie, start, size) + b"\0" + code)


def section_of(*functions: tuple[int, int, bytes], cie: bytes = b"") -> EhFrame:
    """One CIE, and functions of (start, size, instructions)."""
    data = cie or common()
    for start, size, code in functions:
        data += function(len(data), start, size, code)
    return EhFrame(data, SECTION, CODE_START, CODE_END)


def rules_of(section: EhFrame) -> list[tuple[int, RuleKind, int, int]]:
    """(ELF address, kind, operand, words from the CFA down to the saved FP) of each row."""
    return [rule_of(each, section.code_start) for each in build_table(section).rows.tolist()]


def rule_of(row: tuple[int, int], base: int) -> tuple[int, RuleKind, int, int]:
    """See `rules_of`."""
    address, rule = row
    operand = rule >> RuleShift.OPERAND & 0xFFFFF
    return base + address, RuleKind(rule & 0xF), operand, rule >> RuleShift.SAVED_FP


def rule_at(table: UnwindTable, address: int) -> tuple[RuleKind, int, int]:
    """What the table says about an ELF address."""
    index = int(np.searchsorted(table.rows["address"], address - table.base, side="right")) - 1
    return rule_of(tuple(table.rows[index].tolist()), table.base)[1:]
