"""What is known about one live process while its stacks are resolved."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path

from otel_gpuflame.events.frames import Frame, ProcessKey
from otel_gpuflame.symbolize.cpython.code import UNREADABLE, CodeReader
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, PythonRuntime, find_python
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.maps import AddressMap, read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.native import NativeResolver, NativeStack
from otel_gpuflame.symbolize.start_time import is_same_process

REREAD_INTERVAL_S = 1.0
"""Chains of frame pointers are full of addresses that nothing is mapped at: each must not cost a
read of the maps.
"""


class ProcessView:
    """Mappings, memory and interpreter of one process, read when first needed and again after
    `refresh`.
    """

    def __init__(self, key: ProcessKey, proc: Path, files: ElfFiles, demangler: Demangler) -> None:
        self._pid = key.tgid
        self._proc = proc
        self._files = files
        self._demangler = demangler
        self._memory = ProcessMemory(key.tgid, proc)
        if not is_same_process(key, proc):
            self._memory.close()
        self._maps = AddressMap(())
        self._maps_read_s = 0.0
        self._stale = True
        self._python: PythonRuntime | PythonRefusal | None = None
        self._code: CodeReader | None = None
        self._native = self._new_native()

    @property
    def readable(self) -> bool:
        """Whether the process was there, was the right one, and may be read."""
        return self._memory.is_open

    @property
    def interpreter(self) -> tuple[str, int, str] | None:
        """File of the interpreter, where it is one that is walked."""
        return self._python.file if isinstance(self._python, PythonRuntime) else None

    @property
    def refusal(self) -> str:
        """Why the interpreter is not walked; empty where it is, or there is none."""
        return self._python.reason if isinstance(self._python, PythonRefusal) else ""

    def same_address_space(self) -> bool:
        """False after exec or exit: memory stays that of the address space that this view was
        opened on.
        """
        mappings = self._maps.mappings
        return not mappings or self._memory.read(mappings[0].start, 1) is not None

    def refresh(self) -> None:
        """The mappings have changed; they are read when the next stack comes, since changes come in
        bursts.
        """
        self._stale = True

    def python_frame(self, code: int, instruction: int) -> Frame | None:
        """See `CodeReader.frame`."""
        return UNREADABLE if self._code is None else self._code.frame(code, instruction)

    def native_stack(
        self,
        addresses: tuple[int, ...],
        *,
        leaf_is_instruction: bool = False,
        instructions: Collection[int] = (),
    ) -> NativeStack:
        """See `NativeResolver.resolve`; new mappings are looked for when an address is in none,
        once a second.
        """
        if time.monotonic() - self._maps_read_s >= REREAD_INTERVAL_S:
            self._stale |= not all(map(self._native.knows, addresses))
            self.update()
        return self._native.resolve(
            addresses, leaf_is_instruction=leaf_is_instruction, instructions=instructions
        )

    def open_files(self, addresses: Iterable[int]) -> None:
        """Open the files that `addresses` lie in: no way leads to them when the process has ended."""
        self._native.open_files(addresses)

    def close(self) -> None:
        """Gives the descriptors back."""
        self._memory.close()

    def update(self) -> None:
        """Does what `refresh` has asked for: call before the frames of a stack."""
        if not self._stale:
            return
        self._stale = False
        if not self._memory.is_open or not self.same_address_space():
            return
        maps = read_maps(self._pid, self._proc)
        self._maps_read_s = time.monotonic()
        if maps is None or not maps.mappings:
            return
        self._maps = maps
        self._native = self._new_native()
        if not isinstance(self._python, PythonRuntime):
            self._python = find_python(self._pid, self._proc, self._files)
            if isinstance(self._python, PythonRuntime):
                self._code = CodeReader(self._memory, self._python)

    def _new_native(self) -> NativeResolver:
        return NativeResolver(
            self._pid, self._proc, self._maps, self._memory, (self._files, self._demangler)
        )
