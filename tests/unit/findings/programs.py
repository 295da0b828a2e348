"""Programs of ten seconds, as the events that a capture of them would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey
from otel_gpuflame.events.records import Calls, Event, Stacks, Watermark
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.profile.model import Bundle
from tests.unit.profile.builders import (
    DEVICE,
    PROCESS,
    START,
    START_NS,
    attributed,
    attribution,
    call,
    devices,
    executed,
    execution,
    name_event,
    run,
    target_event,
)

US, MS, S = 1_000, 1_000_000, 1_000_000_000
WINDOW_NS: Final = 10 * S
GEMM: Final = 1
TINY: Final = 2


@dataclass(slots=True)
class Program:
    """Adds up what happened. Lines are those of /srv/app/train.py; each is a function of its own unless told."""

    events: list[Event] = field(default_factory=list)

    def calls(
        self, api: str, line: int, count: int, duration_ns: int | None = None, **columns: Any
    ) -> None:
        """`count` equal calls."""
        rows = np.repeat(call(api, duration_ns=duration_ns, key=self.at(line), **columns), count)
        self.events.append(Calls(rows))

    def attribute(
        self, measure: Measure, value_ns: int, line: int, leaf: Leaf = Leaf.KERNEL, **columns: Any
    ) -> None:
        """So many nanoseconds on the device; idle ones are of 100 gaps unless told, where it is known of how many."""
        has_gaps = measure == Measure.GPU_IDLE and leaf != Leaf.NO_SAMPLE
        columns = {"device": DEVICE.index, "gaps": 100 * has_gaps} | columns
        row = attribution(measure, value_ns, leaf, key=self.at(line), **columns)
        self.events.append(attributed(row))

    def launches(
        self, line: int, count: int, execution_ns: int, name: int = GEMM, **shape: Any
    ) -> None:
        """Launches at `line`, and their executions; a shape that fills the device unless told."""
        columns = {"grid": (10_000, 1, 1), "block": (256, 1, 1), "registers_per_thread": 32} | shape
        self.calls("cuLaunchKernel", line, count, object=name)
        self.attribute(
            Measure.GPU_TIME, count * execution_ns, line, api="cuLaunchKernel", name=name
        )
        row = execution(duration_ns=execution_ns, name=name, **columns)
        self.events.append(executed(np.repeat(row, count)))

    def waits(
        self, line: int, count: int, wait_ns: int, api: str = "cuStreamSynchronize", **columns: Any
    ) -> None:
        """Waits whose time comes with the kernel waited for, as the correlation of both sides gives them."""
        self.calls(api, line, count, wait_ns, flags=CallFlag.ATTRIBUTED, **columns)
        self.attribute(
            Measure.GPU_WAIT, count * wait_ns, line, api=api, name=GEMM, mode=WaitMode.SPIN
        )

    def at(self, line: int, function: str = "") -> StackKey:
        """The stack that ends at a line."""
        key = StackKey(line, 1)
        frames = (
            Frame(FrameKind.PYTHON, "main", file="/srv/app/train.py", line=1),
            Frame(FrameKind.PYTHON, function or f"f{line}", file="/srv/app/train.py", line=line),
            Frame(
                FrameKind.PYTHON, "forward", file="/usr/lib/python3.11/site-packages/t/n.py", line=9
            ),
            Frame(FrameKind.NATIVE, "at::native::launch", module="/lib/libtorch.so"),
        )
        self.events.append(Stacks((Stack(key, PROCESS, frames),)))
        return key

    def bundles(self) -> list[Bundle]:
        """What the profile stage makes of it."""
        names = [name_event(GEMM, "gemm"), name_event(TINY, "tiny")]
        # The GPU is used from the first nanosecond to the last.
        first, last = (
            Calls(call("cuEventRecord", start_ns=START_NS + at)) for at in (0, WINDOW_NS - 1)
        )
        before = [START, target_event(), devices(), *names, first]
        found, _ = run([*before, *self.events, last, Watermark(START_NS + WINDOW_NS)])
        return found

    def findings(self) -> list[Finding]:
        """What the rules say."""
        return find(self.bundles())


Scenario: TypeAlias = Callable[[], Program]


def clean() -> Program:
    """Pinned copies that do not block, a read each 50 steps, hardly any idle time, a kernel that fills the device."""
    program = Program()
    program.launches(10, 100_000, 95 * US)
    program.calls("cuMemcpyHtoDAsync", 11, 1_000, 3 * US, bytes=64 << 20)
    program.waits(12, 20, 300 * MS)
    program.calls("cuMemcpyDtoHAsync", 12, 20, 3 * US, bytes=4)
    program.attribute(Measure.GPU_IDLE, 400 * MS, 10, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    program.attribute(Measure.GPU_QUEUE, 50 * MS, 10, Leaf.LAUNCH_LATENCY, api="cuLaunchKernel")
    return program


def item_a_step() -> Program:
    """1,000 steps of 10 ms, each of which reads its loss: the device idles 100 µs after each."""
    program = Program()
    program.launches(10, 100_000, 95 * US)
    program.waits(20, 1_000, 8 * MS)
    program.calls("cuMemcpyDtoHAsync", 20, 1_000, 8 * US, bytes=4)
    program.attribute(Measure.GPU_IDLE, 100 * MS, 10, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    program.attribute(Measure.GPU_IDLE, 20 * MS, 20, Leaf.DRIVER_CALL, api="cuStreamSynchronize")
    return program


def unpinned_copy() -> Program:
    """1,000 copies of 8 MiB from pageable memory, of 2 ms each; the device works meanwhile."""
    program = Program()
    program.launches(10, 100_000, 95 * US)
    program.waits(30, 1_000, 2 * MS, api="cuMemcpyHtoDAsync", bytes=8 << 20)
    program.waits(30, 1_000, 20 * US)
    return program


def sleeping() -> Program:
    """5 ms of sleep in each of 660 steps of 15 ms."""
    program = Program()
    program.launches(10, 6_600, 1 * MS)
    program.attribute(Measure.GPU_IDLE, 660 * 5 * MS, 40, Leaf.OFF_CPU)
    program.attribute(Measure.GPU_IDLE, 660 * 60 * US, 10, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    return program


def python_loop() -> Program:
    """5 ms of pure Python in each of 660 steps of 15 ms: two lines of one function, seen by samples."""
    program = Program()
    program.launches(10, 6_600, 1 * MS)
    program.at(50, "augment")
    for line, ms in ((50, 1_000), (51, 2_000)):
        program.at(line, "augment")
        key, gaps = StackKey(line, 1), 660 * ms / 3_000
        row = attribution(
            Measure.GPU_IDLE, ms * MS, Leaf.ON_CPU, key=key, device=DEVICE.index, gaps=gaps
        )
        program.events.append(attributed(row))
    program.attribute(Measure.GPU_IDLE, 300 * MS, 10, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    return program


def back_pressure() -> Program:
    """5,000 launches of a kernel of 1 ms without a synchronise: the driver takes 1,024, then one by one."""
    program = Program()
    program.launches(60, 5_000, 1 * MS)
    program.attribute(
        Measure.GPU_WAIT, 3_976 * MS, 60, api="cuLaunchKernel", name=GEMM, mode=WaitMode.SPIN
    )
    program.waits(61, 1, 1_024 * MS, api="cuCtxSynchronize")
    return program


def overlapping_streams() -> Program:
    """Two streams that keep the device busy: more execution than there is time, and nothing is lost."""
    program = Program()
    program.launches(10, 9_000, 1 * MS)
    program.launches(11, 9_000, 1 * MS)
    program.attribute(Measure.GPU_QUEUE, 3 * S, 11, Leaf.DEVICE_FULL, api="cuLaunchKernel")
    program.waits(12, 5, 1 * S)
    return program


def copy_awaited_by_event() -> Program:
    """Pinned copies on a stream of their own; kernels wait for them through an event."""
    program = Program()
    program.launches(10, 9_000, 1 * MS)
    program.calls("cuMemcpyHtoDAsync", 11, 1_000, 3 * US, bytes=64 << 20)
    program.attribute(Measure.GPU_TIME, 2 * S, 11, api="cuMemcpyHtoDAsync", leaf_api="cuMemcpyHtoD")
    program.attribute(Measure.GPU_QUEUE, 2 * S, 10, Leaf.WAITS_FOR_EVENT, api="cuLaunchKernel")
    program.waits(12, 5, 1 * S)
    return program


def launch_bound() -> Program:
    """500,000 kernels of 4 µs, each launched 20 µs after the one before."""
    program = Program()
    program.launches(70, 400_000, 4 * US)
    program.launches(71, 100_000, 4 * US)
    program.attribute(Measure.GPU_IDLE, 6 * S, 70, Leaf.NO_SAMPLE, api="cuLaunchKernel")
    program.attribute(Measure.GPU_IDLE, 1 * S, 71, Leaf.ON_CPU)
    program.attribute(Measure.GPU_IDLE, 500 * MS, 71, Leaf.DRIVER_CALL, api="cuLaunchKernel")
    return program


def low_occupancy() -> Program:
    """A kernel of 4 blocks takes a third of the time."""
    program = Program()
    program.launches(10, 60_000, 100 * US)
    program.launches(80, 3_000, 1 * MS, TINY, grid=(4, 1, 1), block=(128, 1, 1))
    return program
