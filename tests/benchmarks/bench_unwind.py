"""What native stacks by unwind tables cost: nanoseconds a hit by depth, and how long tables take to make.

One process launches in a loop through functions without frame pointers, probed by two sessions: one that remembers
walks and one that walks each time. Of the two one at a time has it for a target. We give BPF its tables and take them
away again around blocks, in the order A B C C B A, so that the machine's moods hit all alike. Without tables the walk
ends after one frame (A); with them it must reach the root, and be remembered (B) or not (C), which is checked.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.bpf.drain import split_records
from otel_gpuflame.capture.bpf.kernel import WALK_MEMORY, CaptureKernel
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
WIDE_BYTES: Final = 256
"""On the stack, each frame of the last row: those of PyTorch have about that."""
ROUNDS: Final = 12
BLOCK_NS: Final = 50_000_000
BUILDS: Final = 5
PROC: Final = Path("/proc")
_CALLS, _STACKS = 0, 1
_CALIBRATION: Final = 2_000


class _Session:
    """Probes around one target, which it has from the beginning."""

    def __init__(self, launcher: Launcher, *, remembers: bool) -> None:
        self._launcher = launcher
        self._kernel = _kernel(remembers=remembers)
        self._drain = self._kernel.open_drain()
        self._attachments = Attachments(self._kernel.uprobes, in_windows=False)
        targets = Targets(self._kernel, self._attachments)
        now_ns = time.monotonic_ns()
        targets.add(launcher.pid, now_ns)
        targets.look(now_ns)
        if self._kernel.unwind_maps is None:
            raise RuntimeError("this kernel refuses the search of unwind tables")
        self._tables = UnwindProcesses(self._kernel.unwind_maps)
        target = self._kernel.targets.get(launcher.pid.to_bytes(4, "little"))
        assert target is not None
        self._target = target
        self.process = ProcessKey(launcher.pid, 0)
        """Its start is known from its first stack."""
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

    def watch(self, *, on: bool) -> None:
        """Have the process for a target, or not: its launches then cost the trap, and little more."""
        key = self._launcher.pid.to_bytes(4, "little")
        if on:
            self._kernel.targets.set(key, self._target)
        else:
            self._kernel.targets.delete(key)

    def walks(self) -> dict[str, int]:
        """What has become of walks so far."""
        return {each.outcome: each.count for each in self._kernel.counters() if each.kind == "walk"}

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
        found += _compare(depth, launching.deep_loop(depth))
    found += _compare(DEPTHS[-1], launching.deep_loop(DEPTHS[-1], WIDE_BYTES), ", wide")
    return [*found, *_building()]


def _kernel(*, remembers: bool) -> CaptureKernel:
    os.environ[WALK_MEMORY] = "" if remembers else "off"
    try:
        return CaptureKernel()
    finally:
        del os.environ[WALK_MEMORY]


def _compare(depth: int, command: tuple[str, ...], note: str = "") -> list[Figure]:
    with (
        launching.launcher(*command) as launcher,
        contextlib.closing(_Session(launcher, remembers=True)) as remembering,
        contextlib.closing(_Session(launcher, remembers=False)) as walking,
    ):
        frames = _feed(depth, (remembering, walking))
        remembering.watch(on=True)
        count = max(_CALIBRATION, int(BLOCK_NS / remembering.block(_CALIBRATION)))
        before = remembering.walks()["remembered"]
        times = _blocks(remembering, walking, count)
        if remembering.walks()["remembered"] - before < 2 * ROUNDS * (count - 2):
            raise RuntimeError("walks were not remembered")
        if "remembered" in walking.walks():
            raise RuntimeError("walks were remembered")
    name = f"launch, {frames} native frames{note}"
    cut, remembered, walked = times
    added = {
        "remembered": [on - off for off, on in zip(cut, remembered, strict=True)],
        "walked": [on - off for off, on in zip(cut, walked, strict=True)],
    }
    return [
        figure(f"{name}: cut after one", cut, "ns"),
        *(figure(f"{name}: added when {how}", values, "ns") for how, values in added.items()),
    ]


def _feed(depth: int, sessions: tuple[_Session, ...]) -> int:
    """Have tables in all sessions; how many frames there are, all the way to the root."""
    frames = 0
    for session in sessions:
        session.watch(on=False)
    for session in sessions:
        session.watch(on=True)
        session.switch(session.first_stack().process, on=True)
        whole = session.first_stack()
        if whole.native_state != wire.NativeState.ROOT or len(whole.native) < depth:
            raise RuntimeError(f"{len(whole.native)} frames, state {whole.native_state}")
        frames = len(whole.native)
        session.process = whole.process
        session.watch(on=False)
    return frames


def _blocks(remembering: _Session, walking: _Session, count: int) -> list[list[float]]:
    """Nanoseconds a launch in each round: cut, remembered, walked."""
    order = (0, 1, 2, 2, 1, 0)
    times: list[list[float]] = [[], [], []]
    for _ in range(ROUNDS):
        halves: list[list[float]] = [[], [], []]
        for kind in order:
            session = walking if kind == 2 else remembering
            session.watch(on=True)
            session.switch(session.process, on=kind != 0)
            halves[kind].append(session.block(count))
            session.watch(on=False)
        for values, half in zip(times, halves, strict=True):
            values.append(statistics.fmean(half))
    return times


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
