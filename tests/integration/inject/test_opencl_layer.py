# SPDX-License-Identifier: Apache-2.0
"""The OpenCL layer in a program on PoCL: commands' own times, in our clock, with who enqueued them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.events.executions import (
    DeviceInfo,
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.records import Names
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.fakes.build import app_command
from tests.integration.inject.opencl import LIMIT_S, Capture, Program, window_over

pytestmark = [pytest.mark.inject, pytest.mark.usefixtures("opencl_tier")]

COUNT: Final = 500


@pytest.fixture
def program(start: Callable[..., Program]) -> Callable[..., Program]:
    """Starts app_opencl with these options."""

    def start_app(*options: object) -> Program:
        return start(app_command("app_opencl", *options, "--hold"))

    return start_app


def test_every_command_has_its_own_times(program: Callable[..., Program]) -> None:
    """As long as the program measured, to the nanosecond, and moved into our clock by one amount."""
    capture, truth = window_over(program(COUNT))
    rows = capture.rows(GpuKind.KERNEL)
    theirs = np.array([[e["start_ns"], e["end_ns"]] for e in truth["executions"]], np.uint64)
    assert len(rows) == len(theirs) == COUNT
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == (theirs[:, 1] - theirs[:, 0]).tolist()
    offsets = rows["start_ns"].astype(np.int64) - theirs[:, 0].astype(np.int64)
    # Clocks are compared again each second; enqueues tell to within their own duration.
    enqueues = capture.rows(GpuKind.API)
    longest_ns = int((enqueues["end_ns"] - enqueues["start_ns"]).max())
    assert np.ptp(offsets) <= longest_ns


def test_every_command_has_its_enqueue(program: Callable[..., Program]) -> None:
    """One launch for each command, by the thread that made it, before the command began."""
    capture, truth = window_over(program(COUNT))
    kernels, launches = capture.rows(GpuKind.KERNEL), capture.rows(GpuKind.API)
    assert sorted(kernels["correlation_id"]) == sorted(launches["correlation_id"])
    assert len(set(launches["correlation_id"].tolist())) == COUNT
    assert len(set(launches["thread_pointer"].tolist())) == 1
    assert launches["thread_pointer"].all()
    order = np.argsort(launches["correlation_id"])
    enqueued = launches[order]["start_ns"]
    began = kernels[np.argsort(kernels["correlation_id"])]["start_ns"]
    assert (enqueued <= began).all()
    (stream,) = set(kernels["stream_id"].tolist())
    assert set(launches["stream_id"].tolist()) == {stream}
    (name,) = {name.name for event in capture.of(Names) for name in event.names}
    assert name == truth["kernel"]
    assert set(kernels["name"].tolist()) == {capture.of(Names)[0].names[0].handle}


def test_the_window_is_whole(program: Callable[..., Program]) -> None:
    """One begin, one end, nothing missing; the device is named, and known to be complete up to the last command."""
    capture, _ = window_over(program(COUNT))
    (begin,) = capture.of(ExecutionsBegin)
    (end,) = capture.of(ExecutionsEnd)
    assert end.incomplete == ""
    rows = capture.rows(GpuKind.API)
    assert begin.time_ns <= rows["start_ns"].min()
    assert rows["end_ns"].max() <= end.time_ns
    ((device,),) = (event.devices for event in capture.of(Devices))
    assert isinstance(device, DeviceInfo)
    assert device.model
    assert device.multiprocessors >= 1
    times = [event.time_ns for event in capture.of(ExecutionWatermark)]
    assert times == sorted(times)


def test_queues_that_keep_no_times_are_left_alone(program: Callable[..., Program]) -> None:
    """Nothing is recorded of a queue on which the program did not enable profiling, and the window says so."""
    capture, truth = window_over(program(COUNT, "--plain-queue"))
    assert truth["enqueues"] == COUNT
    assert capture.of(Executions) == []
    assert [event.incomplete for event in capture.of(ExecutionsEnd)] == ["not_timed"]


def test_without_an_exporter_nothing_is_recorded(program: Callable[..., Program]) -> None:
    """A program without a lease runs as it would without us: one descriptor more, and not a word."""
    started = program(COUNT)
    started.go()
    assert started.truth()["enqueues"] == COUNT


def test_windows_that_open_and_close_hold_what_was_in_them(program: Callable[..., Program]) -> None:
    """Each launch recorded has its command, and the other way round, however often capture is switched."""
    started = program(20_000, "--size", 64)
    capture = Capture(started)
    started.go()
    windows = 1

    def has_ended() -> bool:
        return started.process.poll() is not None

    while not has_ended():
        before = len(capture.of(Executions))
        capture.until(lambda before=before: len(capture.of(Executions)) > before or has_ended())
        capture.finish()
        capture.source.begin(time.monotonic_ns())
        capture.until(lambda: not capture.source.is_idle or has_ended())
        windows += 1
    started.truth()
    capture.finish()
    kernels, launches = capture.rows(GpuKind.KERNEL), capture.rows(GpuKind.API)
    assert 0 < len(kernels) <= 20_000
    assert sorted(kernels["correlation_id"]) == sorted(launches["correlation_id"])
    assert len(capture.of(ExecutionsBegin)) == len(capture.of(ExecutionsEnd)) <= windows


def test_a_program_that_is_killed_ends_its_window(program: Callable[..., Program]) -> None:
    """The exporter is left with an incomplete window, and goes on."""
    started = program(1_000_000)
    capture = Capture(started)
    started.go()
    capture.until(lambda: bool(capture.of(Executions)))
    started.process.send_signal(signal.SIGKILL)
    started.process.wait(LIMIT_S)
    capture.pids.clear()
    capture.until(lambda: bool(capture.of(ExecutionsEnd)))
    assert capture.of(ExecutionsEnd)[0].incomplete == "process_ended"
