"""Return addresses of one process → native frames, cut where the chain of frame pointers stops
making sense.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.symbolize.calls import CALL_BYTES, host_call_target
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf import ElfError, MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles, FileIdentity
from otel_gpuflame.symbolize.maps import AddressMap, Mapping
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.perf_map import LivePerfMap

MAX_CACHED_ADDRESSES = 1 << 16
_MAX_VDSO_BYTES = 1 << 16


class NativeFrame(NamedTuple):
    """A frame, and the file it is in (`Mapping.file_identity`)."""

    frame: Frame
    file: tuple[str, int, str]


class NativeStack(NamedTuple):
    """Plausible frames, leaf first; `cut` where an implausible address followed."""

    frames: tuple[NativeFrame, ...]
    cut: bool


class NativeResolver:
    """Knows the mappings of one process as they are now; made anew when they change."""

    def __init__(
        self,
        pid: int,
        proc: Path,
        maps: AddressMap,
        memory: ProcessMemory,
        shared: tuple[ElfFiles, Demangler],
    ) -> None:
        self._pid = pid
        self._proc = proc
        self._maps = maps
        self._memory = memory
        self._files, self._demangler = shared
        self._cache: dict[int, NativeFrame] = {}
        self._opened: set[FileIdentity] = set()
        self._call_target = host_call_target()
        self._compiled = LivePerfMap(pid, proc)

    def open_files(self, addresses: Iterable[int]) -> None:
        """Open the files behind `addresses`, each once: `ElfFiles` then knows them beyond the end of the process."""
        for mapping in map(self._maps.find, addresses):
            if mapping is not None and mapping.is_file:
                identity = mapping.file_identity
                if identity not in self._opened:
                    self._opened.add(identity)
                    self._files.open(self._pid, mapping, self._proc)

    def knows(self, address: int) -> bool:
        """Whether `address` lies in an executable mapping."""
        return self._maps.find(address) is not None

    def resolve(
        self,
        addresses: Sequence[int],
        *,
        leaf_is_instruction: bool = False,
        instructions: Collection[int] = (),
    ) -> NativeStack:
        """Frames up to the first return address that no call instruction precedes.

        All addresses are return addresses, but the first one with `leaf_is_instruction` and those at the positions
        `instructions`.
        """
        frames: list[NativeFrame] = []
        for position, address in enumerate(addresses):
            if (leaf_is_instruction and position == 0) or position in instructions:
                # As if a call ended there; a key of its own, since nobody has looked for that call.
                frame = self._cache.get(~address) or self._resolve(address + 1, is_leaf=True)
            else:
                frame = self._cache.get(address) or self._resolve(address)
            if frame is None:
                return NativeStack(tuple(frames), cut=True)
            frames.append(frame)
        return NativeStack(tuple(frames), cut=False)

    def _resolve(self, return_address: int, *, is_leaf: bool = False) -> NativeFrame | None:
        # The call is what runs: the return address may already belong to the next line or function.
        address = return_address - 1
        mapping = self._maps.find(address)
        if mapping is None or mapping.is_uprobes:
            return None
        elf = self._elf(mapping)
        if not is_leaf and not self._follows_call(return_address, mapping, elf):
            return None
        if elf is None:
            # Not kept: compilers replace their code.
            return NativeFrame(self._anonymous(address, mapping), mapping.file_identity)
        frame = NativeFrame(self._in_file(address, mapping, elf), mapping.file_identity)
        if len(self._cache) >= MAX_CACHED_ADDRESSES:
            self._cache.clear()
        self._cache[~address if is_leaf else return_address] = frame
        return frame

    def _elf(self, mapping: Mapping) -> ElfFile | None:
        if mapping.is_file:
            return self._files.open(self._pid, mapping, self._proc)
        if mapping.path != "[vdso]":
            return None
        image = self._memory.read(mapping.start, min(mapping.end - mapping.start, _MAX_VDSO_BYTES))
        try:
            return None if image is None else ElfFile(MemoryBytes(image))
        except ElfError:
            return None

    def _follows_call(self, return_address: int, mapping: Mapping, elf: ElfFile | None) -> bool:
        code = self._memory.read(return_address - CALL_BYTES, CALL_BYTES)
        if code is None and elf is not None:
            # The process is gone; the file still has its code.
            code = elf.data.read(
                return_address - CALL_BYTES - mapping.start + mapping.offset, CALL_BYTES
            )
        if code is None:
            return False
        target = self._call_target(code, return_address)
        return target is not None and (target == 0 or self.knows(target))

    def _in_file(self, address: int, mapping: Mapping, elf: ElfFile) -> Frame:
        module = _clean(mapping.path)
        file_offset = address - mapping.start + mapping.offset
        elf_address = elf.headers.address_of(file_offset)
        if elf_address is None:
            elf_address = file_offset
        build_id = elf.headers.build_id
        linker_name = elf.functions.name_at(elf_address)
        if linker_name is None:
            name = f"{module.rpartition('/')[2]}+{elf_address:#x}"
            return Frame(FrameKind.NATIVE, name, "", "", 0, module, build_id, elf_address)
        name = self._demangler.demangle(linker_name)
        system_name = "" if name == linker_name else linker_name
        return Frame(FrameKind.NATIVE, name, system_name, "", 0, module, build_id, elf_address)

    def _anonymous(self, address: int, mapping: Mapping) -> Frame:
        """A frame in code that is in no ELF file."""
        named = mapping.is_file or mapping.is_kernel_page
        module = _clean(mapping.path) if named else ""
        offset = address - mapping.start + mapping.offset
        name = None if mapping.is_kernel_page else self._compiled.name_at(address)
        if name is None:
            name = f"{module.rpartition('/')[2] if named else '[anonymous code]'}+{offset:#x}"
        return Frame(FrameKind.NATIVE, name, "", "", 0, module, "", offset)


def _clean(path: str) -> str:
    """A path as text that every output format takes: undecodable bytes become question marks."""
    return path.encode("utf-8", "replace").decode("utf-8")
