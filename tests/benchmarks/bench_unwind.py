"""What native stacks by unwind tables cost: nanoseconds a hit by depth, and how long tables take to make.

One process launches in a loop through functions without frame pointers. We give BPF its tables and take them away again
around blocks, in the order A B B A, so that the machine's moods hit both alike. Without tables the walk ends after one
frame; with them it must reach the root, which is checked.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.capture.unwinding.processes import UnwindProcesses
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.elf import ElfError, FileBytes, read_headers
from otel_gpuflame.symbolize.maps import read_maps
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.unwind.eh_frame import read_eh_frame
from otel_gpuflame.symbolize.unwind.table import build_table
from tests.benchmarks import figures, launching
from tests.benchmarks.figures import Figure, figure
from tests.benchmarks.launching import Launcher

DEPTHS: Final = (0, 20, 50, 90)
ROUNDS: Final = 12
BLOCK_NS: Final = 50_000_000
BUILDS: Final = 5
PROC: Final = Path("/proc")
_CALLS, _STACKS = 0, 1
_CALIBRATION: Final = 2_000


class _Session:
    """Probes around one target."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._kernel = CaptureKernel()
        self._drain = self._kernel.open_drain()
        self._attachments = Attachments(self._kernel.uprobes, in_windows=False)
        targets = Targets(self._kernel, self._attachments)
        now_ns = time.monotonic_ns()
        targets.add(launcher.pid, now_ns)
        targets.look(now_ns)
        if self._kernel.unwind_maps is None:
            raise RuntimeError("this kernel refuses the search of unwind tables")
        self._tables = UnwindProcesses(self._kernel.unwind_maps)
        self._drain.start()

    def first_stack(self) -> RawStack:
        """One launch, and the stack that came with it."""
        self._launcher.launch(1)
        self._drain.swap(0)
        (record,) = split_records(self._drain.data(_STACKS))
        raw = decode_stack(record)
        if raw is None:
            raise RuntimeError("the stack cannot be decoded")
        return raw

    def switch(self, process: ProcessKey, *, on: bool) -> None:
        """Give BPF all tables of the process, or none."""
        if not on:
            self._tables.forget(process, 0)
            return
        mappings = read_maps(process.tgid, PROC)
        if mappings is not None:
            self._tables.want(process, [each.start for each in mappings.mappings], 0)

    def block(self, count: int) -> float:
        """Nanoseconds a launch; every launch must have arrived."""
        elapsed_ns = self._launcher.launch(count)
        self._drain.swap(0)
        arrived = len(self._drain.data(_CALLS)) // wire.CALL.itemsize
        if arrived != count:
            raise RuntimeError(f"{arrived} calls arrived instead of {count}")
        return elapsed_ns / count

    def close(self) -> None:
        """Detach and free."""
        self._drain.close()
        self._attachments.close()
        self._kernel.close()


def measure() -> list[Figure]:
    """Cost by depth, then building."""
    found: list[Figure] = []
    for depth in DEPTHS:
        with launching.launcher(*launching.deep_loop(depth)) as launcher:
            session = _Session(launcher)
            try:
                found += _compare(depth, session)
            finally:
                session.close()
    return [*found, *_building()]


def _compare(depth: int, session: _Session) -> list[Figure]:
    process = session.first_stack().process
    session.switch(process, on=True)
    whole = session.first_stack()
    if whole.native_state != wire.NativeState.ROOT or len(whole.native) < depth:
        raise RuntimeError(f"{len(whole.native)} frames, state {whole.native_state}")
    count = max(_CALIBRATION, int(BLOCK_NS / session.block(_CALIBRATION)))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        halves: dict[bool, list[float]] = {True: [], False: []}
        for on in (False, True, True, False):
            session.switch(process, on=on)
            halves[on].append(session.block(count))
        for on, values in halves.items():
            times[on].append(statistics.fmean(values))
    added = [on - off for off, on in zip(times[False], times[True], strict=True)]
    frames = len(whole.native)
    return [
        figure(f"launch, {frames} native frames: cut after one", times[False], "ns"),
        figure(f"launch, {frames} native frames: added by walking all", added, "ns"),
        figure(f"{frames} native frames: added by each", [ns / (frames - 1) for ns in added], "ns"),
    ]


def _building() -> list[Figure]:
    """Of every library that this process maps."""
    mappings = read_maps(os.getpid(), PROC)
    paths = {each.path for each in mappings.mappings if each.is_file} if mappings else set()
    seconds = np.zeros(BUILDS)
    rows = 0
    for path in sorted(paths):
        data = FileBytes(os.open(path, os.O_RDONLY))
        try:
            headers = read_headers(data)
            for build in range(BUILDS):
                begin = time.perf_counter()
                table = build_table(read_eh_frame(data, headers))
                seconds[build] += time.perf_counter() - begin
        except ElfError:
            continue
        rows += len(table.rows)
    return [
        figure(f"{rows} rows of {len(paths)} libraries: made in", list(seconds * 1e3), "ms"),
        figure("making a row", list(seconds * 1e9 / rows), "ns"),
    ]


if __name__ == "__main__":
    figures.main(measure)
