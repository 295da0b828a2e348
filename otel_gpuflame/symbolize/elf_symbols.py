"""Symbols of an ELF file: functions by address (numpy, names lazily), single symbols by name."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.symbolize.elf import (
    SHT_DYNSYM,
    SHT_GNU_HASH,
    SHT_SYMTAB,
    ElfBytes,
    ElfHeaders,
    Section,
)

MAX_SYMBOLS = 8 << 20
"""192 MiB of table; libtorch_cpu.so has 0.55 million, a debug build of Chromium 4 million."""
MAX_NAME_BYTES = 1 << 15
MAX_SCANNED_NAMES_BYTES = 64 << 20
MAX_HASH_CHAIN = 1 << 12
MAX_PLACES = 64
"""Of one name in a string table: once, and again as the end of each longer name that a linker merged with it."""
STT_FUNC = 2
STT_TLS = 6
_STT_GNU_IFUNC = 10
_SHN_UNDEF = 0
_FIRST_NAME_BYTES = 256
_LOOK_BACK = 8
"""Labels and parts (`.cold`, local entry points) nest in functions; deeper nesting is not met."""

SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_SYMBOL_BYTES = SYMBOL.itemsize
_HASH_HEADER = struct.Struct("<IIII")


class Symbol(NamedTuple):
    """A defined symbol. `value` is an ELF address, or an offset in the TLS segment (`type`
    STT_TLS).

    `number` is the row in its table, by which relocations refer to it.
    """

    value: int
    size: int
    type: int
    number: int


class FunctionTable:
    """Functions of a file, sorted by address. 20 bytes a function; names stay in the file."""

    def __init__(self, data: ElfBytes, headers: ElfHeaders) -> None:
        self._data = data
        self._names: Section | None = None
        self._complete = False
        self._starts: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._sizes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._name_offsets: NDArray[np.uint32] = np.empty(0, np.uint32)
        for section_type in (SHT_SYMTAB, SHT_DYNSYM):
            section = headers.section_of(section_type)
            if section is not None:
                self._load(_functions(symbols_of(data, section)))
                if len(self._starts):
                    self._names = headers.linked(section)
                    self._complete = section_type == SHT_SYMTAB
                    return

    def __len__(self) -> int:
        return len(self._starts)

    def name_at(self, address: int) -> str | None:
        """Linker's name of the function that holds ELF `address`; None where no function does.

        A function of size 0 (assembler) reaches to the next one, where the file names them all.
        """
        if not 0 <= address < 1 << 64:
            return None
        last = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        for index in range(last, max(last - _LOOK_BACK, -1), -1):
            size = int(self._sizes[index])
            unsized = size == 0 and index == last and self._complete
            if unsized or address < int(self._starts[index]) + size:
                name = self._name(int(self._name_offsets[index]))
                if name:
                    return name
        return None

    def _load(self, rows: NDArray[Any]) -> None:
        # Of several names for an address the last one after sorting wins: sized before unsized,
        # global before local.
        rank = (rows["size"] > 0).astype(np.uint8) * 2 + (rows["info"] >> 4 == 1)
        order = np.lexsort((rank, rows["value"]))
        self._starts = rows["value"][order].astype(np.uint64)
        self._sizes = rows["size"][order].astype(np.uint64)
        self._name_offsets = rows["name"][order].astype(np.uint32)

    def _name(self, offset: int) -> str:
        return "" if self._names is None else read_name(self._data, self._names, offset)


def symbols_of(data: ElfBytes, section: Section) -> NDArray[Any]:
    """All rows of a symbol table as `SYMBOL`, as far as the file has them."""
    count = min(section.size // _SYMBOL_BYTES, MAX_SYMBOLS)
    raw = data.read(section.offset, count * _SYMBOL_BYTES)
    return np.frombuffer(raw, SYMBOL, len(raw) // _SYMBOL_BYTES)


def read_name(data: ElfBytes, names: Section, offset: int) -> str:
    """A string of a string table; empty where it is outside the table or longer than
    `MAX_NAME_BYTES`.
    """
    for size in (_FIRST_NAME_BYTES, MAX_NAME_BYTES):
        raw = data.read(names.offset + offset, min(size, names.size - offset))
        end = raw.find(b"\0")
        if end >= 0:
            return raw[:end].decode("utf-8", "replace")
    return ""


def find_dynamic_symbol(data: ElfBytes, headers: ElfHeaders, name: str) -> Symbol | None:
    """A defined symbol of .dynsym. Through .gnu.hash a miss costs one 8-byte read, whatever the
    size of the file.
    """
    table, hashes = headers.section_of(SHT_DYNSYM), headers.section_of(SHT_GNU_HASH)
    if table is None:
        return None
    if hashes is None:
        return _scan(data, headers, table, name)
    for index in _hash_candidates(data, hashes, _gnu_hash(name.encode())):
        symbol = _symbol_at(data, headers, table, (index, name))
        if symbol is not None:
            return symbol
    return None


def find_symbol(data: ElfBytes, headers: ElfHeaders, name: str) -> Symbol | None:
    """A defined symbol of .dynsym or, slower, of .symtab."""
    found = find_dynamic_symbol(data, headers, name)
    table = headers.section_of(SHT_SYMTAB)
    return found if found is not None or table is None else _scan(data, headers, table, name)


def places_in(text: bytes, wanted: bytes) -> list[int]:
    """Where a string table has `wanted`, also as the end or the begin of a longer name.

    Empty where it has it more than `MAX_PLACES` times: that is no linker's work, and whoever made it wants us to look
    at each of millions.
    """
    places: list[int] = []
    at = text.find(wanted)
    while at >= 0:
        if len(places) == MAX_PLACES:
            return []
        places.append(at)
        at = text.find(wanted, at + 1)
    return places


def _functions(rows: NDArray[Any]) -> NDArray[Any]:
    kind = rows["info"] & 15
    keep = (kind == STT_FUNC) | (kind == _STT_GNU_IFUNC)
    selected: NDArray[Any] = rows[keep & (rows["value"] != 0) & (rows["section"] != _SHN_UNDEF)]
    return selected


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _hash_candidates(data: ElfBytes, section: Section, wanted: int) -> list[int]:
    """Indices of symbols whose hash is `wanted` but for the lowest bit, which ends a chain."""
    raw = data.read(section.offset, _HASH_HEADER.size)
    if len(raw) < _HASH_HEADER.size:
        return []
    buckets, first_symbol, bloom_words, bloom_shift = _HASH_HEADER.unpack(raw)
    if not buckets or not bloom_words:
        return []
    bloom_at = section.offset + _HASH_HEADER.size
    word = int.from_bytes(data.read(bloom_at + 8 * (wanted // 64 % bloom_words), 8), "little")
    if not (word >> wanted % 64) & (word >> (wanted >> (bloom_shift & 31)) % 64) & 1:
        return []
    buckets_at = bloom_at + 8 * bloom_words
    first = int.from_bytes(data.read(buckets_at + 4 * (wanted % buckets), 4), "little")
    if first < first_symbol:
        return []
    chain = data.read(buckets_at + 4 * buckets + 4 * (first - first_symbol), 4 * MAX_HASH_CHAIN)
    candidates = []
    for index, (value,) in enumerate(struct.iter_unpack("<I", chain[: len(chain) & ~3])):
        if value | 1 == wanted | 1:
            candidates.append(first + index)
        if value & 1:
            break
    return candidates


def _symbol_at(
    data: ElfBytes, headers: ElfHeaders, table: Section, wanted: tuple[int, str]
) -> Symbol | None:
    index, name = wanted
    names = headers.linked(table)
    raw = data.read(table.offset + index * _SYMBOL_BYTES, _SYMBOL_BYTES)
    if names is None or len(raw) < _SYMBOL_BYTES or (index + 1) * _SYMBOL_BYTES > table.size:
        return None
    row = np.frombuffer(raw, SYMBOL)[0]
    if int(row["section"]) == _SHN_UNDEF or read_name(data, names, int(row["name"])) != name:
        return None
    return Symbol(int(row["value"]), int(row["size"]), int(row["info"]) & 15, index)


def _scan(data: ElfBytes, headers: ElfHeaders, table: Section, name: str) -> Symbol | None:
    names = headers.linked(table)
    if names is None:
        return None
    text = data.read(names.offset, min(names.size, MAX_SCANNED_NAMES_BYTES))
    # The linker merges tails: the name may be the end of a longer one, and several symbols may share it.
    places = places_in(text, name.encode() + b"\0")
    if not places:
        return None
    rows = symbols_of(data, table)
    found = np.flatnonzero(np.isin(rows["name"], places) & (rows["section"] != _SHN_UNDEF))
    if not len(found):
        return None
    row = rows[found[0]]
    return Symbol(int(row["value"]), int(row["size"]), int(row["info"]) & 15, int(found[0]))
