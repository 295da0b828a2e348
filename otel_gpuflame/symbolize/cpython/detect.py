"""Finds the CPython inside a process: its version, its layout, and the addresses that checks
compare with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from otel_gpuflame.symbolize.cpython.layouts import (
    DEBUG_OFFSETS_BYTES,
    FIRST_VERSION,
    LAST_VERSION,
    SUPPORTED,
    CodeLayout,
    PythonLayout,
    VersionLayout,
    layout_of,
    parse_debug_offsets,
)
from otel_gpuflame.symbolize.elf import EM_X86_64
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles
from otel_gpuflame.symbolize.maps import MAX_SEARCHED_FILES, AddressMap, Mapping, read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory

Version = tuple[int, int, int]

_FILE_NAME = re.compile(r"(?:lib)?python(\d)\.(\d{1,2})([a-z]*)(?:\.so.*)?")
_LIBRARY_PATH = re.compile(r"/lib/python(\d)\.(\d{1,2})(t?)/")
_RELEASE_CANDIDATE = 0xC
_MAX_CHECKED_THREADS = 64
_CHECKS = 3
"""A thread may end while the list is read: only a list that is wrong each time is a wrong layout.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRuntime:
    """A supported interpreter.

    `layout` is for BPF, `code` for reading code objects. `code_type` and `none` are addresses of
    PyCode_Type and None (0: unknown); `file` identifies the file that holds the interpreter
    (`Mapping.file_identity`).
    """

    version: Version
    layout: PythonLayout
    code: CodeLayout
    code_type: int
    none: int
    file: tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class PythonRefusal:
    """An interpreter that is not walked; `reason` says which and why, for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that defines `_PyRuntime`."""

    elf: ElfFile
    mapping: Mapping
    bias: int
    runtime: int

    def address(self, name: str) -> int:
        symbol = self.elf.symbol(name)
        return 0 if symbol is None else self.bias + symbol.value


def find_python(
    pid: int, proc: Path, files: ElfFiles | None = None
) -> PythonRuntime | PythonRefusal | None:
    """The interpreter of a process; None where there is none yet, or the process is gone or must
    not be read.

    Works from exec on: as soon as the interpreter's file is mapped, whether or not it has been
    initialised.
    """
    maps = read_maps(pid, proc)
    if maps is None:
        return None
    refusal = _refused_by_name(maps)
    if refusal is not None:
        return refusal
    found = _find_runtime(pid, proc, maps, files or ElfFiles())
    if found is None:
        return None
    memory = ProcessMemory(pid, proc)
    try:
        return _describe(found, maps, memory)
    finally:
        memory.close()


def _describe(
    found: _Found, maps: AddressMap, memory: ProcessMemory
) -> PythonRuntime | PythonRefusal | None:
    if not memory.is_open:
        return None
    version = _version(found, maps, memory)
    if isinstance(version, PythonRefusal):
        return version
    layout = layout_of(version[:2])
    if layout is None:
        return PythonRefusal(f"CPython {version[0]}.{version[1]} is not supported: {SUPPORTED}")
    if version[:2] >= (3, 13):
        published = parse_debug_offsets(memory.read(found.runtime, DEBUG_OFFSETS_BYTES))
        if published is not None and published.free_threaded:
            return _free_threaded(version[:2])
        if published is not None:
            layout = published.apply(layout)
    runtime = _runtime(found, version, layout)
    if not _threads_plausible(
        runtime.layout, memory, is_x86_64=found.elf.headers.machine == EM_X86_64
    ):
        return PythonRefusal(
            f"CPython {'.'.join(map(str, version))} of {found.mapping.path} keeps its threads elsewhere "
            "than the release of that version: a patched or debug build is not supported"
        )
    return runtime


def _runtime(found: _Found, version: Version, layout: VersionLayout) -> PythonRuntime:
    return PythonRuntime(
        version=version,
        layout=replace(
            layout.python, interpreters_head=found.runtime + layout.runtime_interpreters_head
        ),
        code=layout.code,
        code_type=found.address("PyCode_Type"),
        none=found.address("_Py_NoneStruct"),
        file=found.mapping.file_identity,
    )


def _find_runtime(pid: int, proc: Path, maps: AddressMap, files: ElfFiles) -> _Found | None:
    for mapping in _candidates(maps.mappings):
        elf = files.open(pid, mapping, proc)
        if elf is None:
            continue
        named = _named_version(mapping) is not None
        symbol = elf.symbol("_PyRuntime") if named else elf.dynamic_symbol("_PyRuntime")
        bias = elf.headers.bias_of(mapping.start, mapping.offset)
        if symbol is not None and bias is not None:
            return _Found(elf, mapping, bias, bias + symbol.value)
    return None


def _candidates(mappings: Iterable[Mapping]) -> list[Mapping]:
    """The first mapping of each file, files that are named like an interpreter first; `MAX_SEARCHED_FILES` of them."""
    first: dict[tuple[str, int, str], Mapping] = {}
    for mapping in mappings:
        if mapping.is_file:
            first.setdefault(mapping.file_identity, mapping)
    by_name = sorted(first.values(), key=lambda mapping: _named_version(mapping) is None)
    return by_name[:MAX_SEARCHED_FILES]


def _named_version(mapping: Mapping) -> tuple[int, int, str] | None:
    match = _FILE_NAME.fullmatch(mapping.path.rpartition("/")[2])
    return None if match is None else (int(match[1]), int(match[2]), match[3])


def _refused_by_name(maps: AddressMap) -> PythonRefusal | None:
    """Versions whose files must not be searched for what they do not have: `_PyRuntime` came with
    3.7.
    """
    for mapping in maps.mappings:
        named = _named_version(mapping)
        if named is None or not mapping.is_file:
            continue
        if not FIRST_VERSION <= named[:2] <= LAST_VERSION:
            return PythonRefusal(f"CPython {named[0]}.{named[1]} is not supported: {SUPPORTED}")
        if "t" in named[2]:
            return _free_threaded(named[:2])
    return None


def _free_threaded(version: tuple[int, int]) -> PythonRefusal:
    return PythonRefusal(
        f"the free-threaded build of CPython {version[0]}.{version[1]} is not supported: "
        "builds with the GIL are"
    )


def _version(found: _Found, maps: AddressMap, memory: ProcessMemory) -> Version | PythonRefusal:
    """By `Py_Version` (3.11 on), else by the file's name, else by the path of the standard
    library's extensions.
    """
    at = found.address("Py_Version")
    number = memory.u32(at) if at else None
    if number:
        version = number >> 24, number >> 16 & 255, number >> 8 & 255
        if number >> 4 & 15 < _RELEASE_CANDIDATE and version[:2] <= LAST_VERSION:
            return PythonRefusal(
                f"a pre-release of CPython {version[0]}.{version[1]} is not supported: releases are"
            )
        return version
    named = _named_version(found.mapping)
    if named is not None:
        return named[0], named[1], 0
    for mapping in maps.mappings:
        match = _LIBRARY_PATH.search(mapping.path)
        if match is not None:
            return int(match[1]), int(match[2]), 0
    return PythonRefusal(
        f"the CPython in {found.mapping.path} is older than 3.11 and does not say its version: "
        f"{SUPPORTED} supported"
    )


def _threads_plausible(layout: PythonLayout, memory: ProcessMemory, *, is_x86_64: bool) -> bool:
    return any(_threads_once(layout, memory, is_x86_64=is_x86_64) for _ in range(_CHECKS))


def _threads_once(layout: PythonLayout, memory: ProcessMemory, *, is_x86_64: bool) -> bool:
    """Whether the list of threads is empty, or one of its members has the id of a thread.

    An id is pthread_self(). On x86-64 that is the address of a block that starts with its own
    address.
    """
    interpreter = memory.u64(layout.interpreters_head)
    if not interpreter:
        return interpreter == 0
    thread = memory.u64(interpreter + layout.interpreter_threads_head)
    for _ in range(_MAX_CHECKED_THREADS):
        if not thread:
            return thread == 0
        thread_id = memory.u64(thread + layout.thread_id)
        if thread_id is None:
            return False
        block = memory.u64(thread_id) if thread_id else 0
        if block == thread_id or (block is not None and not is_x86_64):
            return True
        thread = memory.u64(thread + layout.thread_next)
    return False
