"""GPU libraries: which files they are, and which of their functions can be probed where."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from elftools.elf.segments import Segment

from otel_gpuflame.capture.bpf.probes import spec_for_symbol
from otel_gpuflame.capture.bpf.uprobes import ProbePoint

# libcuda.so.1 is what every CUDA runtime, Triton, NCCL and static cudart end up in; wheels rename the OpenCL loader
# that they bundle (libOpenCL-5519dec5.so.1.0.0).
_GPU_LIBRARY: Final = re.compile(r"^(libcuda|libOpenCL(-[0-9a-f]+)?)\.so(\.\d+)*$")
_STANDARD_NAMES: Final = ("libcuda.so.1", "libOpenCL.so.1")
_ENDBR64: Final = bytes.fromhex("f30f1efa")
# push %rbp … push %r15, and the one-byte and multi-byte nops: the kernel emulates these instead of single-stepping.
_CHEAP_FIRST_BYTES: Final = (*(bytes([b]) for b in range(0x50, 0x58)), b"\x90", b"\x0f\x1f")
_CHEAP_FIRST_BYTES_REX: Final = tuple(bytes([0x41, b]) for b in range(0x50, 0x58))


@dataclass(frozen=True, slots=True)
class FileKey:
    """An inode: uprobes attach to it whatever path or mount namespace it is seen through."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class GpuLibrary:
    """A library file with its probe points."""

    path: Path
    key: FileKey
    points: tuple[ProbePoint, ...]


def is_gpu_library(path: str) -> bool:
    """Whether the file name is that of a GPU driver library we know."""
    return _GPU_LIBRARY.match(os.path.basename(path.removesuffix(" (deleted)"))) is not None


def read_library(path: Path) -> GpuLibrary | None:
    """Probe points of a library; None if it cannot be read, is no ELF file, or exports none of our functions."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            points = tuple(_probe_points(ELFFile(file)))
    except (OSError, ELFError, ValueError, KeyError, UnicodeDecodeError):
        return None
    if not points:
        return None
    return GpuLibrary(path, FileKey(status.st_dev, status.st_ino), points)


def file_offset_of(path: Path, function: str) -> int | None:
    """Offset of an exported function in its file; None if there is none."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        if not isinstance(symbols, SymbolTableSection):
            return None
        segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        for symbol in symbols.get_symbol_by_name(function) or ():
            return _file_offset(segments, symbol["st_value"])
    return None


def _probe_points(elf: ELFFile) -> Iterator[ProbePoint]:
    """One point a program and address: aliases of one function share it."""
    segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    symbols = elf.get_section_by_name(".dynsym")
    seen: set[tuple[str, int]] = set()
    if not isinstance(symbols, SymbolTableSection):
        return
    for symbol in symbols.iter_symbols():
        if symbol["st_info"]["type"] != "STT_FUNC" or symbol["st_shndx"] == "SHN_UNDEF":
            continue
        spec = spec_for_symbol(symbol.name)
        if spec is None:
            continue
        offset = _file_offset(segments, symbol["st_value"])
        if offset is None:
            continue
        offset += _past_endbr64(elf, offset)
        for program in spec.programs:
            if (program.value, offset) not in seen:
                seen.add((program.value, offset))
                yield ProbePoint(program, offset, spec.cookie, spec.windowed)


def _file_offset(segments: Iterable[Segment], address: int) -> int | None:
    for segment in segments:
        if segment["p_vaddr"] <= address < segment["p_vaddr"] + segment["p_filesz"]:
            return int(address - segment["p_vaddr"] + segment["p_offset"])
    return None


def _past_endbr64(elf: ELFFile, offset: int) -> int:
    """4 where a probe may move past endbr64: single-stepping it costs 4.6 µs a hit, emulating a push 1.1 µs.

    Arguments and return address are the same on both sides of it.
    """
    elf.stream.seek(offset)
    code = elf.stream.read(8)
    rest = code[4:]
    if code[:4] != _ENDBR64:
        return 0
    return 4 if rest.startswith(_CHEAP_FIRST_BYTES + _CHEAP_FIRST_BYTES_REX) else 0


def installed_libraries(environment: Mapping[str, str]) -> list[Path]:
    """GPU libraries that a program started with `environment` would most likely load, best guess first.

    Only an optimisation: whatever a process really maps is found when it maps it.
    """
    directories = [Path(d) for d in environment.get("LD_LIBRARY_PATH", "").split(":") if d]
    found = [d / name for d in directories for name in _STANDARD_NAMES]
    found += [Path(line) for line in _loader_cache() if is_gpu_library(line)]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def _loader_cache() -> list[str]:
    """Paths in the dynamic loader's cache; empty where there is no ldconfig."""
    for command in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            output = subprocess.run([command, "-p"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        return [line.rpartition(" => ")[2] for line in output.stdout.splitlines() if " => " in line]
    return []
