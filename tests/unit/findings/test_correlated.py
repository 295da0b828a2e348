"""Programs as both sides see them, through the correlation: each gives exactly its finding, within 5 % of the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey
from otel_gpuflame.events.records import CaptureStart, Event, HandleName, Names, Stacks
from otel_gpuflame.events.wire import CALL, CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_IDLE, GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.top import total
from tests.unit.correlate.gpu.program import MS, Program
from tests.unit.correlate.gpu.traffic import PROCESS, executed
from tests.unit.profile.builders import devices

US = 1_000
END_NS = 1_500 * MS
GEMM = 77
DEVICE = 3
FILLS = {"grid": (10_000, 1, 1), "block": (256, 1, 1), "registers_per_thread": 32}
TRAIN, READ, COPY, SLEEP, LOOP = 10, 20, 30, 40, 50


@dataclass
class Recording:
    """A program on one stream; lines are stacks. `now`: where its thread is, `free`: when the device is."""

    program: Program = field(default_factory=Program)
    now: int = MS
    free: int = 0
    end_ns: int = END_NS

    def launch(self, duration_ns: int, line: int = TRAIN, api: str = "cuLaunchKernel") -> None:
        """Asynchronous: 5 µs of the thread, and of the device after what it has to do already."""
        start = max(self.now + 5 * US, self.free)
        self.program.kernel(
            self.now,
            start,
            start + duration_ns,
            stack=line,
            api=api,
            device=DEVICE,
            name=GEMM,
            **FILLS,
        )
        self.now, self.free = self.now + 5 * US, start + duration_ns

    def synchronise(self, line: int, api: str = "cuStreamSynchronize") -> None:
        """Until the device has done everything, and 5 µs more."""
        self.program.wait(self.now, self.free + 5 * US, api, stack=line)
        self.now = self.free + 5 * US

    def copy(self, duration_ns: int, size_bytes: int, line: int) -> None:
        """From pageable memory: the thread stays until it is done."""
        begin, start = self.now, max(self.now + 5 * US, self.free)
        end = start + duration_ns
        self.program.kernel(begin, start, end, stack=line, api="cuMemcpyHtoDAsync", device=DEVICE)
        self.program.records[-1][1]["kind"] = GpuKind.COPY
        self.program.records[-1][1]["detail"] = 1
        call = self.program.calls[-1][1]
        call["end_ns"], call["flags"], call["bytes"] = end + 5 * US, CallFlag.RETURNED, size_bytes
        self.program.calls[-1] = (end + 5 * US, call)
        self.now, self.free = end + 5 * US, end

    def thread(self, kind: Kind, line: int, until: int | None = None) -> None:
        """A sample, or a time off the CPU."""
        row = np.zeros(1, CALL)
        row["kind"], row["tgid"], row["tid"] = kind, PROCESS.tgid, PROCESS.tgid
        row["process_start_ns"], row["start_ns"] = PROCESS.start_ns, self.now
        row["stack_hash"][:, 0] = line
        if until is not None:
            row["end_ns"], row["flags"], row["bytes"] = until, CallFlag.RETURNED, 2
        self.program.calls.append((until or self.now, row))

    def events(self) -> list[Event]:
        """What a capture of it holds."""
        start = CaptureStart(0, 0, ())
        name = Names((HandleName(PROCESS, 0, GEMM, "gemm"),))
        lines = (TRAIN, READ, COPY, SLEEP, LOOP)
        stacks = Stacks(tuple(Stack(StackKey(n, 0), PROCESS, (_frame(n),)) for n in lines))
        return [start, name, devices(), stacks, *self.program.events(self.end_ns)]

    def bundles(self) -> list[Bundle]:
        """What comes out of both stages."""
        correlator, aggregator = GpuCorrelator(), Aggregator(AggregateOptions(window_ns=None))
        passed = [out for event in self.events() for out in correlator.feed(event)]
        bundles = [b for out in [*passed, *correlator.finish()] for b in aggregator.feed(out)]
        return bundles + aggregator.finish()

    def findings(self) -> list[Finding]:
        """What the rules say."""
        return find(self.bundles())


def _frame(line: int) -> Frame:
    return Frame(FrameKind.PYTHON, f"f{line}", file="/srv/app/train.py", line=line)


def clean() -> Recording:
    """20 kernels a step that fill the device, read every 60 steps."""
    recording = Recording()
    step = 0
    while recording.free < END_NS - 30 * MS:
        step += 1
        for _ in range(20):
            recording.launch(450 * US)
        if step % 60 == 0:
            recording.synchronise(READ)
        # The thread is never further ahead than the driver lets it.
        recording.now = max(recording.now, recording.free - 50 * MS)
    return recording


def item_a_step() -> Recording:
    """9 ms of kernels, read at the end of each step; 100 µs of Python before the next one."""
    recording = Recording()
    while recording.now < END_NS - 20 * MS:
        for _ in range(20):
            recording.launch(450 * US)
        recording.synchronise(READ)
        recording.now += 100 * US
    return recording


def unpinned_copy() -> Recording:
    """A copy of 2 ms before the kernels of each step."""
    recording = Recording()
    while recording.now < END_NS - 30 * MS:
        recording.copy(2 * MS, 20 << 20, COPY)
        for _ in range(10):
            recording.launch(500 * US)
        recording.now = max(recording.now, recording.free - 100 * US)
    return recording


def sleeping() -> Recording:
    """5 ms asleep when the device has nothing to do, in each step of 10 ms of kernels."""
    recording = Recording()
    while recording.now < END_NS - 40 * MS:
        for _ in range(10):
            recording.launch(1 * MS)
        recording.now = recording.free
        recording.thread(Kind.OFF_CPU, SLEEP, recording.now + 5 * MS)
        recording.now += 5 * MS
    return recording


def running_ahead() -> Recording:
    """400 kernels of 20 µs a step, 2 µs apart; the thread launches them all, and is then asleep while they run."""
    recording = Recording()
    while recording.now < END_NS - 40 * MS:
        for _ in range(400):
            recording.launch(20 * US)
            recording.free += 2 * US
        until = recording.free - 2 * MS
        recording.thread(Kind.OFF_CPU, SLEEP, until)
        recording.now = until
    return recording


def python_loop() -> Recording:
    """5 ms of pure Python in its place, seen by a sample every 10.1 ms of CPU time."""
    recording = Recording()
    cpu_ns = 0
    while recording.now < END_NS - 40 * MS:
        for _ in range(10):
            recording.launch(1 * MS)
        recording.now = recording.free
        cpu_ns += 5 * MS
        if cpu_ns >= 10_101_010:
            cpu_ns -= 10_101_010
            recording.now += 2 * MS
            recording.thread(Kind.CPU_SAMPLE, LOOP)
            recording.now -= 2 * MS
        recording.now += 5 * MS
    return recording


def back_pressure(copies_every: int = 0) -> Recording:
    """Kernels of 1 ms; after 300 calls the driver takes one for each that ends. Copies are of pinned memory."""
    recording = Recording()
    for number in range(1_300):
        is_copy = copies_every and number % copies_every == 0
        if is_copy:
            recording.launch(1 * MS, COPY, "cuMemcpyHtoDAsync")
            recording.program.records[-1][1]["kind"] = GpuKind.COPY
            recording.program.records[-1][1]["detail"] = 1
        else:
            recording.launch(1 * MS)
        (_, call) = recording.program.calls[-1]
        begin = int(call["start_ns"][0])
        held_ns = 995 * US if number >= 300 else 0
        if is_copy:
            call["end_ns"], call["flags"] = begin + held_ns + 4 * US, CallFlag.RETURNED
            call["bytes"] = 20 << 20
            recording.program.calls[-1] = (begin + held_ns + 4 * US, call)
        if held_ns:
            launch = recording.program.records[-2][1]
            launch["end_ns"] = begin + held_ns + 4 * US
            full = executed(
                0, begin + 1 * US, begin + 1 * US + held_ns, kind=GpuKind.OVERHEAD, detail=6
            )
            recording.program.records[-2] = (begin + 1 * MS, launch)
            recording.program.records.append((begin + 1 * MS, full))
            recording.now += held_ns
    return recording


def launch_bound() -> Recording:
    """10,000 kernels of 4 µs, 20 µs apart, in a fifth of a second."""
    recording = Recording(end_ns=250 * MS)
    while recording.now < 201 * MS:
        recording.launch(4 * US)
        recording.now += 15 * US
    return recording


def compiling_once() -> Recording:
    """Kernels of 300 µs, 20 µs apart, and once 300 ms of Python between two of them."""
    recording = Recording()
    is_done = False
    while recording.now < END_NS - 40 * MS:
        recording.launch(300 * US)
        recording.now = recording.free + 15 * US
        if not is_done and recording.now > 500 * MS:
            is_done, end = True, recording.now + 300 * MS
            while recording.now < end:
                recording.thread(Kind.CPU_SAMPLE, LOOP)
                recording.now += 10_101_010
    return recording


def paused() -> Recording:
    """1,200 kernels of 4 µs, 6 µs apart, of which every 200th comes after 50 ms of which nothing is known."""
    recording = Recording(end_ns=450 * MS)
    for number in range(1_200):
        recording.launch(4 * US)
        recording.now += 5 * US
        if number % 200 == 100:
            recording.now += 50 * MS
    return recording


@pytest.mark.parametrize(
    ("program", "rule", "line", "lost_ns"),
    [
        (item_a_step, "synchronise-in-loop", READ, 1_474 * MS),
        (unpinned_copy, "unpinned-copy", COPY, 448 * MS),
        (sleeping, "input-bound", SLEEP, 98 * 5 * MS),
        (python_loop, "input-bound", LOOP, 98 * 5 * MS),
        (back_pressure, "back-pressure-bound", TRAIN, 995 * MS),
        (launch_bound, "launch-bound", TRAIN, 160 * MS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_program_gives_exactly_its_finding(
    program: Callable[[], Recording], rule: str, line: int, lost_ns: int
) -> None:
    """The rule, the line, and the time lost."""
    (finding,) = program().findings()
    assert (finding.rule, finding.place.line) == (rule, line)
    assert finding.lost_ns == pytest.approx(lost_ns, rel=0.05)


def test_a_clean_program_gives_none() -> None:
    """Also where it waits now and then, and the device idles a little after that."""
    assert clean().findings() == []


def test_a_thread_that_is_ahead_of_its_device_lets_it_not_idle() -> None:
    """Kernels are a little apart however early they were launched: not for what their thread did later."""
    assert running_ahead().findings() == []


def test_a_copy_that_is_held_back_as_launches_are_is_not_of_pageable_memory() -> None:
    """Whatever is given to a full queue takes long; a pageable copy would wait for the whole queue."""
    (finding,) = back_pressure(copies_every=5).findings()
    assert (finding.rule, finding.place.line) == ("back-pressure-bound", TRAIN)


def test_samples_of_a_pause_tell_nothing_of_the_gaps_after_it() -> None:
    """Else what came once would have come a thousand times."""
    assert compiling_once().findings() == []


def test_long_gaps_without_samples_do_not_make_a_program_launch_bound() -> None:
    """To launch takes no 50 ms: a kernel was compiled, or the recording has no samples (--no-cpu)."""
    assert paused().findings() == []


@pytest.mark.parametrize("program", [clean, item_a_step, sleeping, running_ahead, launch_bound])
def test_busy_and_idle_add_up_to_the_window(program: Callable[[], Recording]) -> None:
    """On one stream the device executes, idles, or it is not known: nothing in between."""
    recording = program()
    bundles = recording.bundles()
    waited_ns = sum(
        int(row["end_ns"][0]) - int(row["start_ns"][0])
        for _, row in recording.program.calls
        if row["kind"][0] == Kind.WAIT
    )
    assert total(bundles, GPU_TIME) + total(bundles, GPU_IDLE) == recording.end_ns
    assert total(bundles, GPU_WAIT) == waited_ns
