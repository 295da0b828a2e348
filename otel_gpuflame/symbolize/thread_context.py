"""Where the threads of a process keep the OpenTelemetry thread context record (OTEP 4947).

The publisher exports the thread-local pointer `otel_thread_ctx_v1`. It lies at a constant distance from the thread
pointer (static TLS), or in a block of its module that each thread has elsewhere, found through the thread's vector of
such blocks (dynamic TLS, for libraries that were opened later and are large). A library reaches it through words of its
GOT that the dynamic linker has filled in, so these are read from the live process; in the main program the linker has
fixed the place, and the ELF headers tell it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.symbolize.elf import (
    EM_AARCH64,
    EM_X86_64,
    ET_EXEC,
    PT_INTERP,
    PT_TLS,
    SHT_RELA,
    ElfHeaders,
)
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles, FileIdentity
from otel_gpuflame.symbolize.elf_symbols import STT_TLS, Symbol
from otel_gpuflame.symbolize.maps import MAX_SEARCHED_FILES, Mapping, read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory

SYMBOL_NAME = "otel_thread_ctx_v1"
MAX_RELOCATION_BYTES = 128 << 20
"""Of all sections of a file."""
MAX_RELOCATION_SECTIONS = 16
"""Libraries have two. Those that were linked for a later rewriting have one more for each section, after these."""
MAX_SLOTS = 64
"""Words of the GOT that are read of a file: a linker makes one for each model of TLS that the code uses."""
MAX_STATIC_TLS_BYTES = 1 << 24
"""Static TLS is tens of KiB; a pointer to a descriptor of dynamic TLS is far beyond this."""
MAX_MODULES = 1 << 16
"""Of a process with TLS; glibc counts them from 1 and takes numbers again."""

_log = logging.getLogger(__name__)
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


@dataclass(frozen=True, slots=True)
class _Abi:
    """Relocation types, and the size of the thread control block where TLS lies above the thread
    pointer (else 0).
    """

    tpoff: int
    descriptor: int
    module: int
    control_block_bytes: int


_ABIS = {EM_X86_64: _Abi(18, 36, 16, 0), EM_AARCH64: _Abi(1030, 1031, 1028, 16)}


class ThreadContextPlace(NamedTuple):
    """Where `otel_thread_ctx_v1` of a thread is: `offset` bytes from the thread pointer, negative on x86-64.

    With a `module` that is not 0: from the thread's block of that module.
    """

    offset: int
    module: int = 0


def find_thread_context(
    pid: int,
    proc: Path,
    files: ElfFiles | None = None,
    without: set[FileIdentity] | None = None,
) -> ThreadContextPlace | None:
    """Where the threads of a process have `otel_thread_ctx_v1`.

    None where no mapped file exports it, or its place is not known; the reason is logged at level DEBUG. `without` are
    files that do not export it, as found by earlier calls for the same process; further ones are added. One call looks
    at `MAX_SEARCHED_FILES`.
    """
    maps = read_maps(pid, proc)
    if maps is None:
        return None
    files = files or ElfFiles()
    without = set() if without is None else without
    searched = 0
    for mapping in maps.mappings:
        if not mapping.is_file or mapping.file_identity in without:
            continue
        searched += 1
        if searched > MAX_SEARCHED_FILES:
            _log.debug("process %d: more than %d files to search", pid, MAX_SEARCHED_FILES)
            return None
        elf = files.open(pid, mapping, proc)
        symbol = None if elf is None else elf.dynamic_symbol(SYMBOL_NAME)
        if elf is None or symbol is None:
            without.add(mapping.file_identity)
            continue
        place = _place(pid, proc, mapping, _Publisher(elf, symbol))
        if place is not None:
            return place
    return None


@dataclass(frozen=True, slots=True)
class _Publisher:
    elf: ElfFile
    symbol: Symbol


def _place(
    pid: int, proc: Path, mapping: Mapping, publisher: _Publisher
) -> ThreadContextPlace | None:
    headers, path = publisher.elf.headers, mapping.path
    abi = _ABIS.get(headers.machine)
    bias = headers.bias_of(mapping.start, mapping.offset)
    if abi is None or bias is None or publisher.symbol.type != STT_TLS:
        _log.debug("%s: %s is not a thread-local symbol of a known machine", path, SYMBOL_NAME)
        return None
    if _is_program(headers):
        return _in_program(headers, publisher.symbol, abi)
    memory = ProcessMemory(pid, proc)
    try:
        for kind, slot in _slots(publisher, abi):
            place = _in_library(memory, bias + slot, kind, publisher.symbol, abi)
            if place is not None:
                return place
    finally:
        memory.close()
    _log.debug(
        "%s: no word of the GOT says where %s is, or it is not relocated yet", path, SYMBOL_NAME
    )
    return None


def _in_library(
    memory: ProcessMemory, slot: int, kind: int, symbol: Symbol, abi: _Abi
) -> ThreadContextPlace | None:
    """By one word of the GOT, at the address `slot`."""
    if kind == abi.module:
        return _in_module(memory.u64(slot), symbol)
    word = memory.u64(slot + (8 if kind == abi.descriptor else 0))
    if word is None:
        return None
    offset = _signed(word)
    if offset and _is_static(offset, abi):
        return ThreadContextPlace(offset)
    # The argument of a descriptor of dynamic TLS leads to the module's number, and the place in it.
    if kind == abi.descriptor and memory.u64(word + 8) == symbol.value:
        return _in_module(memory.u64(word), symbol)
    return None


def _in_module(number: int | None, symbol: Symbol) -> ThreadContextPlace | None:
    if number is None or not 0 < number < MAX_MODULES:
        return None
    return ThreadContextPlace(symbol.value, number)


def _is_program(headers: ElfHeaders) -> bool:
    """A position-independent program is a shared object by type, but asks for a dynamic linker."""
    return headers.type == ET_EXEC or any(each.type == PT_INTERP for each in headers.segments)


def _in_program(headers: ElfHeaders, symbol: Symbol, abi: _Abi) -> ThreadContextPlace | None:
    for segment in headers.segments:
        if segment.type == PT_TLS:
            align = max(segment.align, 1)
            if abi.control_block_bytes:
                return ThreadContextPlace(_round_up(abi.control_block_bytes, align) + symbol.value)
            return ThreadContextPlace(symbol.value - _round_up(segment.memory_bytes, align))
    return None


def _slots(publisher: _Publisher, abi: _Abi) -> Iterator[tuple[int, int]]:
    """Relocation types and ELF addresses of GOT entries for the symbol, and of those with the library's own number.

    Those of static TLS first in each section, and `MAX_SLOTS` in all. A TLS descriptor is two words: resolver,
    argument.
    """
    return islice(_all_slots(publisher, abi), MAX_SLOTS)


def _all_slots(publisher: _Publisher, abi: _Abi) -> Iterator[tuple[int, int]]:
    left_bytes = MAX_RELOCATION_BYTES
    for section in publisher.elf.headers.sections_of(SHT_RELA, MAX_RELOCATION_SECTIONS):
        count = min(section.size, left_bytes) // _RELA.itemsize
        raw = publisher.elf.data.read(section.offset, count * _RELA.itemsize)
        left_bytes -= len(raw)
        rows: NDArray[Any] = np.frombuffer(raw, _RELA, len(raw) // _RELA.itemsize)
        # By number, or (where the library binds to its own symbol) by place in the library's TLS.
        by_number = (rows["symbol"] == publisher.symbol.number) & (rows["addend"] == 0)
        by_place = (rows["symbol"] == 0) & (rows["addend"] == publisher.symbol.value)
        of_module = (rows["symbol"] == publisher.symbol.number) | (rows["symbol"] == 0)
        for kind, chosen in (
            (abi.tpoff, by_number | by_place),
            (abi.descriptor, by_number | by_place),
            (abi.module, of_module),
        ):
            for row in rows[(rows["type"] == kind) & chosen]:
                yield kind, int(row["offset"])


def _is_static(offset: int, abi: _Abi) -> bool:
    below = abi.control_block_bytes == 0
    return -MAX_STATIC_TLS_BYTES < offset < 0 if below else 0 < offset < MAX_STATIC_TLS_BYTES


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _round_up(value: int, align: int) -> int:
    return (value + align - 1) // align * align
