"""Which mappings of a process have which table. Used by one thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.unwinding.files import (
    NO_TABLE,
    FileMaps,
    UnwindFiles,
    half_of,
)
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.elf import ElfError, MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles, FileIdentity
from otel_gpuflame.symbolize.maps import AddressMap, Mapping, read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.start_time import is_same_process
from otel_gpuflame.symbolize.unwind.eh_frame import find_eh_frame

MAX_MAPPINGS: Final = 4095
"""Executable ones of a process, as many as BPF searches."""
_MAX_VDSO_BYTES: Final = 1 << 16
_MAX_OPEN_FILES: Final = 256
_SMALL_SECTION_BYTES: Final = 512 << 10
"""Up to 1 MB of table. Of libc, libstdc++ and libpython, each; those of PyTorch and CUDA have megabytes."""
_U64: Final = (1 << 64) - 1


class ProcessMaps(FileMaps, Protocol):
    """Where tables and mappings go: see `UnwindMaps`."""

    def put_process(self, pid: int, mappings: NDArray[Any]) -> None:
        """All that is known of a process."""

    def drop_process(self, pid: int) -> None:
        """The process has gone."""


@dataclass(slots=True)
class _Process:
    wanted: set[FileIdentity] = field(default_factory=set)
    """Files that stacks went through."""
    files: list[int] = field(default_factory=list)
    """Tables in use, one for each mapping."""


class UnwindProcesses:
    """Keeps what BPF knows of processes in step with their mappings. Raises OSError where BPF refuses something."""

    def __init__(
        self, maps: ProcessMaps, files: UnwindFiles | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._maps = maps
        self._proc = proc
        self._elf_files = ElfFiles(_MAX_OPEN_FILES)
        self._processes: dict[ProcessKey, _Process] = {}
        self._owners: dict[int, ProcessKey] = {}
        self._version = 0
        """Of the mappings that were published last: rules that BPF remembers are not those of other mappings."""
        self.files = files or UnwindFiles(maps)

    def __len__(self) -> int:
        return len(self._processes)

    def want(self, process: ProcessKey, addresses: Iterable[int], now_ns: int) -> None:
        """A stack has met `addresses`: BPF is to have the tables of the files that they lie in, and all small ones."""
        mappings = self._read(process)
        if mappings is None:
            return
        known = self._processes.get(process) or _Process()
        found = {each.file_identity for each in map(mappings.find, addresses) if each is not None}
        if found <= known.wanted and process in self._processes:
            return
        known.wanted |= found
        self._processes[process] = known
        try:
            self._publish(process, known, mappings, now_ns)
        except BaseException:
            # The next stack that lacks a table begins anew.
            self.forget(process, now_ns)
            raise

    def changed(self, process: ProcessKey, now_ns: int) -> None:
        """Its mappings have changed: a table of the wrong file leads anywhere."""
        known = self._processes.get(process)
        if known is None:
            return
        mappings = self._read(process)
        if mappings is None:
            self.forget(process, now_ns)
        else:
            self._publish(process, known, mappings, now_ns)

    def forget(self, process: ProcessKey, now_ns: int) -> None:
        """It has ended, or executes another program."""
        known = self._processes.pop(process, None)
        if known is None:
            return
        if self._owners.get(process.tgid) == process:
            del self._owners[process.tgid]
            self._maps.drop_process(process.tgid)
        for number in known.files:
            self.files.give_back(number, now_ns)

    def _read(self, process: ProcessKey) -> AddressMap | None:
        if not is_same_process(process, self._proc):
            return None
        return read_maps(process.tgid, self._proc)

    def _publish(
        self, process: ProcessKey, known: _Process, mappings: AddressMap, now_ns: int
    ) -> None:
        """Give BPF all mappings of wanted files anew, and only then let go of tables that it used before."""
        former, known.files = known.files, []
        rows: list[tuple[int, int, int, int, int]] = []
        try:
            for mapping in mappings.mappings:
                elf = self._elf(process.tgid, mapping)
                is_wanted = mapping.file_identity in known.wanted or is_small(elf)
                if is_wanted and len(rows) < MAX_MAPPINGS:
                    rows.append(self._row(mapping, elf, known, now_ns))
            self._version += 1
            head = (process.start_ns, self._version, 0, 0, half_of(len(rows) + 1))
            self._maps.put_process(process.tgid, np.array([head, *rows], wire.UNWIND_MAPPING))
            self._owners[process.tgid] = process
        finally:
            for number in former:
                self.files.give_back(number, now_ns)

    def _row(
        self, mapping: Mapping, elf: ElfFile | None, known: _Process, now_ns: int
    ) -> tuple[int, int, int, int, int]:
        bias = None if elf is None else elf.headers.bias_of(mapping.start, mapping.offset)
        if elf is None or bias is None:
            return mapping.start, mapping.end, 0, *NO_TABLE[::2]
        table = self.files.take(elf, now_ns)
        known.files.append(table.number)
        return mapping.start, mapping.end, (table.base + bias) & _U64, table.number, table.half

    def _elf(self, pid: int, mapping: Mapping) -> ElfFile | None:
        if mapping.is_file:
            return self._elf_files.open(pid, mapping, self._proc)
        if mapping.path != "[vdso]":
            return None
        memory = ProcessMemory(pid, self._proc)
        image = memory.read(mapping.start, min(mapping.end - mapping.start, _MAX_VDSO_BYTES))
        memory.close()
        try:
            return None if image is None else ElfFile(MemoryBytes(image))
        except ElfError:
            return None


def is_small(elf: ElfFile | None) -> bool:
    """Whether a table costs so little that it is made before a stack needs it.

    Each file without one on the way to the root costs a stack, and a program may launch from few places.
    """
    if elf is None:
        return False
    try:
        return find_eh_frame(elf.data, elf.headers).size <= _SMALL_SECTION_BYTES
    except ElfError:
        return False
