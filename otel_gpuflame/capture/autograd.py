"""PyTorch's autograd engine: where to probe it, so that backward work finds who called `backward()`.

See docs/decisions/0014-autograd.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from otel_gpuflame.capture.bpf.libbpf import BpfMap
from otel_gpuflame.capture.bpf.probes import ProbeGroup, Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import GpuLibrary, probe_offset, read_points
from otel_gpuflame.symbolize.elf import SHT_DYNSYM, ElfBytes, ElfHeaders
from otel_gpuflame.symbolize.elf_symbols import (
    MAX_PLACES,
    MAX_SCANNED_NAMES_BYTES,
    STT_FUNC,
    places_in,
    symbols_of,
)

# Distributions put the version of PyTorch behind it.
_AUTOGRAD_LIBRARY: Final = re.compile(r"^libtorch_cpu\.so(\.\d+)*$")


class _Function(NamedTuple):
    """A member of torch::autograd::Engine: its name up to the task's type, since what follows differs by version."""

    prefix: bytes
    program: Program
    task_argument: int
    """Position of the shared_ptr<GraphTask> &, counted from 1; `this` is an argument."""
    is_windowed: bool
    group: ProbeGroup | None = None


# An object is returned through a pointer: on x86-64 that is the first argument, on arm64 it has a register of its own.
_BEFORE_THIS: Final = 1 if os.uname().machine == "x86_64" else 0
_FUNCTIONS: Final = (
    _Function(
        b"_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEE",
        Program.BACKWARD,
        2 + _BEFORE_THIS,
        is_windowed=False,
        group=ProbeGroup.BACKWARD,
    ),
    _Function(
        b"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE",
        Program.NODE,
        2,
        is_windowed=True,
    ),
)


class SeenPasses:
    """Tells BPF since when each pass that begins is seen.

    What it knows of a pass from before that may be of another one by now, in the same memory.
    """

    _NEVER: Final = (1 << 64) - 1

    def __init__(self, passes_since: BpfMap) -> None:
        self._passes_since = passes_since

    def begin(self, now_ns: int) -> None:
        """From `now_ns` (CLOCK_MONOTONIC) on. After the probe was attached everywhere."""
        self._set(now_ns)

    def end(self) -> None:
        """No longer. Before the probe is detached anywhere."""
        self._set(self._NEVER)

    def _set(self, since_ns: int) -> None:
        # A reader may see bytes of both: with all bits set in one, they make no earlier time than the other.
        self._passes_since.set(bytes(4), since_ns.to_bytes(8, "little"))


def is_autograd_library(path: str) -> bool:
    """Whether the file name is that of the library with PyTorch's autograd engine."""
    return _AUTOGRAD_LIBRARY.match(os.path.basename(path.removesuffix(" (deleted)"))) is not None


def read_autograd_library(path: Path) -> GpuLibrary | None:
    """Probe points of a libtorch_cpu; None if it lacks one of the functions. Raises OSError."""
    library = read_points(path, _points)
    return library if library is not None and len(library.points) == len(_FUNCTIONS) else None


def _points(data: ElfBytes, headers: ElfHeaders) -> Iterator[ProbePoint]:
    table = headers.section_of(SHT_DYNSYM)
    names = None if table is None else headers.linked(table)
    if table is None or names is None:
        return
    text = data.read(names.offset, min(names.size, MAX_SCANNED_NAMES_BYTES))
    rows = symbols_of(data, table)
    rows = rows[(rows["info"] & 15 == STT_FUNC) & (rows["section"] != 0)]
    for function in _FUNCTIONS:
        found = rows["value"][np.isin(rows["name"], places_in(text, function.prefix))]
        for address in found[:MAX_PLACES]:
            offset = probe_offset(data, headers, int(address))
            if offset is not None:
                yield ProbePoint(
                    function.program,
                    offset,
                    function.task_argument,
                    function.is_windowed,
                    function.group,
                )
