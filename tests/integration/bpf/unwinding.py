# SPDX-License-Identifier: Apache-2.0
"""Capturing raw stacks of a program for which BPF has every unwind table, without waiting for any to be made."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.bpf.drain import Drain, split_records
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.capture.unwinding.processes import UnwindProcesses
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.maps import AddressMap, read_maps
from otel_gpuflame.symbolize.raw import RawStack
from tests.fakes.build import FAKES

PROC = Path("/proc")
PROGRAMS = Path(__file__).parent / "programs"
WITHOUT_FRAME_POINTERS = ("-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls")
_STACKS = 1


def compile_program(directory: Path, fakes: Path, *options: str) -> Path:
    """`no_frame_pointers.c` on the fake driver."""
    program = directory / "no_frame_pointers"
    subprocess.run(
        [
            *("cc", "-std=gnu11", "-pthread", *(options or WITHOUT_FRAME_POINTERS)),
            *(f"-I{FAKES / 'cuda'}", "-o", str(program), str(PROGRAMS / "no_frame_pointers.c")),
            *(f"-L{fakes}", "-l:libcuda.so.1"),
        ],
        check=True,
    )
    return program


@dataclass(slots=True)
class RawCapture:
    """Programs in the kernel, one process as their target."""

    pid: int
    kernel: CaptureKernel
    targets: Targets
    drain: Drain
    tables: UnwindProcesses

    def feed(self, process: ProcessKey) -> None:
        """Have a table for each file that the process maps; its key is in its first stack."""
        starts = [each.start for each in self.mappings().mappings]
        self.tables.want(process, starts, time.monotonic_ns())

    def mappings(self) -> AddressMap:
        """Executable mappings of the process."""
        found = read_maps(self.pid, PROC)
        assert found is not None
        return found

    def stacks(self) -> list[RawStack]:
        """Those that have come since the last call."""
        self.drain.swap(0)
        raws = [decode_stack(record) for record in split_records(self.drain.data(_STACKS))]
        return [raw for raw in raws if raw is not None]


@contextmanager
def raw_capture(pid: int, features: Collection[Feature] = (Feature.CALLS,)) -> Iterator[RawCapture]:
    """Probe the driver library of a process."""
    kernel = CaptureKernel(features=features)
    attachments = Attachments(kernel.uprobes, in_windows=False)
    drain = kernel.open_drain()
    try:
        targets = Targets(kernel, attachments)
        now_ns = time.monotonic_ns()
        targets.add(pid, now_ns)
        targets.look(now_ns)
        assert kernel.unwind_maps is not None
        yield RawCapture(pid, kernel, targets, drain, UnwindProcesses(kernel.unwind_maps))
    finally:
        drain.close()
        attachments.close()
        kernel.close()
