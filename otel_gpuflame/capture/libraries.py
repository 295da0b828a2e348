"""GPU libraries: which files they are, and which of their functions can be probed where."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from otel_gpuflame.capture.bpf.probes import spec_for_symbol
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.symbolize.elf import (
    PT_LOAD,
    SHT_DYNSYM,
    ElfBytes,
    ElfError,
    ElfHeaders,
    FileBytes,
    Segment,
    read_headers,
)
from otel_gpuflame.symbolize.elf_symbols import (
    MAX_SCANNED_NAMES_BYTES,
    STT_FUNC,
    find_dynamic_symbol,
    symbols_of,
)

# libcuda.so.1 is what every CUDA runtime, Triton, NCCL and static cudart end up in; wheels rename the OpenCL loader
# that they bundle (libOpenCL-5519dec5.so.1.0.0).
_GPU_LIBRARY: Final = re.compile(r"^(libcuda|libOpenCL(-[0-9a-f]+)?)\.so(\.\d+)*$")
# Who calls CUPTI profiles the process: such calls are probed in programs that use a GPU library anyway.
_PROFILING_LIBRARY: Final = re.compile(r"^libcupti(-[0-9a-f]+)?\.so(\.\d+)*$")
_STANDARD_NAMES: Final = ("libcuda.so.1", "libOpenCL.so.1")
_MAX_EXPORTED: Final = 1 << 16
"""Functions whose names are looked at. cuda.h of CUDA 13.5 declares 800; what a target maps under that name may have
millions."""
_MAX_NAME_BYTES: Final = 256
_MAX_POINTS: Final = 1 << 10
"""Probes in a file: 215 where a driver exports all that cuda.h declares."""
_ENDBR64: Final = bytes.fromhex("f30f1efa")
# push %rbp … push %r15, and the one-byte and multi-byte nops: the kernel emulates these instead of single-stepping.
_CHEAP_FIRST_BYTES: Final = (*(bytes([b]) for b in range(0x50, 0x58)), b"\x90", b"\x0f\x1f")
_CHEAP_FIRST_BYTES_REX: Final = tuple(bytes([0x41, b]) for b in range(0x50, 0x58))


@dataclass(frozen=True, slots=True)
class GpuLibrary:
    """A library file with its probe points."""

    path: Path
    points: tuple[ProbePoint, ...]


def is_gpu_library(path: str) -> bool:
    """Whether the file name is that of a GPU driver library we know."""
    return _GPU_LIBRARY.match(_file_name(path)) is not None


def is_profiling_library(path: str) -> bool:
    """Whether the file name is CUPTI's."""
    return _PROFILING_LIBRARY.match(_file_name(path)) is not None


def _file_name(path: str) -> str:
    return os.path.basename(path.removesuffix(" (deleted)"))


def read_library(path: Path) -> GpuLibrary | None:
    """Probe points of a library; None if it is no ELF file, or exports none of our functions. Raises OSError.

    Takes about 1 ms for a libcuda, and calls made meanwhile are missed: the tables are read whole, not name by name.
    """
    return read_points(path, _probe_points)


PointReader: TypeAlias = Callable[[ElfBytes, ElfHeaders], Iterable[ProbePoint]]


def read_points(path: Path, points_in: PointReader) -> GpuLibrary | None:
    """A library with the points that `points_in` finds in it; None as for `read_library`."""
    data = FileBytes(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        points = tuple(islice(points_in(data, read_headers(data)), _MAX_POINTS))
    except ElfError:
        return None
    return GpuLibrary(path, points) if points else None


def file_offset_of(path: Path, function: str) -> int | None:
    """Offset of an exported function in its file; None if there is none. Raises OSError, ElfError."""
    data = FileBytes(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    headers = read_headers(data)
    symbol = find_dynamic_symbol(data, headers, function)
    return None if symbol is None else _file_offset(headers.segments, symbol.value)


def _probe_points(data: ElfBytes, headers: ElfHeaders) -> Iterator[ProbePoint]:
    """One point a program and address: aliases of one function share it."""
    seen: set[tuple[str, int]] = set()
    for name, address in _exported_functions(data, headers):
        spec = spec_for_symbol(name)
        offset = None if spec is None else probe_offset(data, headers, address)
        if spec is None or offset is None:
            continue
        for program in spec.programs:
            if (program.value, offset) not in seen:
                seen.add((program.value, offset))
                yield ProbePoint(program, offset, spec.cookie, spec.windowed, spec.group)


def _exported_functions(data: ElfBytes, headers: ElfHeaders) -> Iterator[tuple[str, int]]:
    """(name, ELF address) of each function that the file exports."""
    table = headers.section_of(SHT_DYNSYM)
    names = None if table is None else headers.linked(table)
    if table is None or names is None:
        return
    text = data.read(names.offset, min(names.size, MAX_SCANNED_NAMES_BYTES))
    rows = symbols_of(data, table)
    rows = rows[(rows["info"] & 15 == STT_FUNC) & (rows["section"] != 0)][:_MAX_EXPORTED]
    for start, address in zip(rows["name"].tolist(), rows["value"].tolist(), strict=True):
        end = text.find(b"\0", start, start + _MAX_NAME_BYTES)
        if end > start:
            yield text[start:end].decode("utf-8", "replace"), address


def probe_offset(data: ElfBytes, headers: ElfHeaders, address: int) -> int | None:
    """Where in the file to probe the function at an ELF address; None if it is in no segment."""
    offset = _file_offset(headers.segments, address)
    return None if offset is None else offset + _past_endbr64(data, offset)


def _file_offset(segments: Iterable[Segment], address: int) -> int | None:
    for segment in segments:
        start = segment.address
        if segment.type == PT_LOAD and start <= address < start + segment.file_bytes:
            return address - start + segment.offset
    return None


def _past_endbr64(data: ElfBytes, offset: int) -> int:
    """4 where a probe may move past endbr64: single-stepping it costs 4.6 µs a hit, emulating a push 1.1 µs.

    Arguments and return address are the same on both sides of it.
    """
    code = data.read(offset, 8)
    if code[:4] != _ENDBR64:
        return 0
    return 4 if code[4:].startswith(_CHEAP_FIRST_BYTES + _CHEAP_FIRST_BYTES_REX) else 0


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
