# SPDX-License-Identifier: Apache-2.0
"""What the OpenCL layer holds of a program, and what the program may do all the same, in an open window."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from otel_gpuflame.events.executions import ExecutionsEnd
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.integration.inject.opencl import Capture, Program

pytestmark = [pytest.mark.inject, pytest.mark.usefixtures("opencl_tier")]

ACTS: Final = Path(__file__).with_name("opencl_acts.py")
COMPARISON_NS: Final = 1_000_000_000
"""The layer asks its devices for the time once a second."""

ATTEMPTS: Final = 20

Start = Callable[[Sequence[str]], Program]


class Act:
    """A program with one act, in a window."""

    def __init__(self, start: Start, name: str) -> None:
        self.program = start([sys.executable, str(ACTS), name])
        self.capture = Capture(self.program)
        self.told = 1

    def next(self) -> dict[str, int]:
        """Let it go on until it has said more; what it said."""
        self.program.go()
        self.told += 1
        self.capture.until(
            lambda: len(self.program.said()) >= self.told or self.program.process.poll() is not None
        )
        said = self.program.said()
        assert len(said) >= self.told, self.program.truth()
        return said[-1]

    def wait_for_kernels(self, count: int) -> None:
        """Until so many executions have been recorded, each with its times."""
        self.capture.until(lambda: len(self.capture.rows(GpuKind.KERNEL)) >= count)
        assert self.capture.rows(GpuKind.KERNEL)["start_ns"].all()

    def end(self) -> None:
        """Let it end, which it must do well and without a word."""
        self.program.go()
        self.capture.until(lambda: self.program.process.poll() is not None)
        self.program.truth()
        self.capture.pids.clear()
        self.capture.finish()


def test_a_program_is_built_again_as_soon_as_its_kernels_are_let_go(start: Start) -> None:
    """OpenCL refuses to build a program of which somebody holds a kernel: the layer holds none."""
    act = Act(start, "rebuild")
    enqueues = act.next()["enqueues"]
    act.wait_for_kernels(enqueues)
    act.end()
    assert len(act.capture.rows(GpuKind.KERNEL)) == enqueues


def test_a_part_of_a_device_that_was_let_go_is_not_lost_to_the_layer(start: Start) -> None:
    """It has a reference of its own: clocks are compared with it for as long as windows are open."""
    act = Act(start, "sub_device")
    act.next()
    act.wait_for_kernels(1)
    assert act.next()["references"] == 2
    act.next()
    act.wait_for_kernels(2)
    begun_ns = int(act.capture.rows(GpuKind.API)["end_ns"].max())
    act.capture.until(lambda: act.capture.read_ns > begun_ns + 2 * COMPARISON_NS)
    act.end()
    assert len(act.capture.rows(GpuKind.KERNEL)) == 2


def test_a_loader_that_is_closed_stays_for_the_layer(start: Start) -> None:
    """Its functions are called by the layer's thread for as long as the program lives."""
    act = Act(start, "close_loader")
    said = act.next()
    assert said["is_mapped"]
    act.wait_for_kernels(said["enqueues"])
    act.end()


def test_a_program_that_ends_with_a_command_on_its_way_does_not_wait_for_it(start: Start) -> None:
    """It would wait for ever. What was over is recorded, and the window says that something is missing."""
    for _ in range(ATTEMPTS):
        act = Act(start, "leave_running")
        act.next()
        act.wait_for_kernels(1)
        act.end()
        assert len(act.capture.rows(GpuKind.KERNEL)) == 1
        (end,) = act.capture.of(ExecutionsEnd)
        if end.incomplete == "not_flushed":
            return
        # The program leaves the layer half a second to write that, in which a busy machine may not run it.
        assert end.incomplete == "process_ended"
    pytest.fail("the layer waited for the command for longer than the program waits for the layer")
