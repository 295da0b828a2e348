# SPDX-License-Identifier: Apache-2.0
"""The OpenCL layer in a program on PoCL: commands' own times, in our clock, with who enqueued them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pytest

from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events.executions import (
    EXECUTION,
    DeviceInfo,
    Devices,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event, Names
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.symbolize.start_time import start_monotonic_ns
from tests.fakes.build import ROOT, app_command
from tests.tiers import require

pytestmark = pytest.mark.inject

LAYER: Final = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_opencl.so"
COUNT: Final = 500
LIMIT_S: Final = 300


class Program:
    """app_opencl under the layer, held until `go`."""

    def __init__(self, *options: object, layer: Path = LAYER) -> None:
        environment = {**os.environ, "OPENCL_LAYERS": str(layer), "PYTHONPATH": str(ROOT)}
        # Files, since nobody reads while the program runs, and its truth is longer than a pipe.
        self._output, self._errors = (tempfile.TemporaryFile("w+") for _ in "oe")  # noqa: SIM115
        self.process = subprocess.Popen(
            app_command("app_opencl", *options, "--hold"),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            text=True,
        )
        self._wait_until_ready()

    def go(self) -> None:
        """Let it enqueue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def truth(self) -> dict[str, Any]:
        """What it says at its end; fails unless it ended well and said nothing else."""
        assert self.process.wait(LIMIT_S) == 0
        assert _text(self._errors) == ""
        truth: dict[str, Any] = json.loads(_text(self._output).splitlines()[-1])
        return truth

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while "\n" not in _text(self._output):
            assert self.process.poll() is None, _text(self._errors)
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _text(file: IO[str]) -> str:
    """All of a file that another process may be writing: it shares the position, which stays where it was."""
    return os.pread(file.fileno(), 1 << 26, 0).decode()


@pytest.fixture
def program(inject_tier: None) -> Iterator[Callable[..., Program]]:
    """Starts programs, and ends them with the test."""
    started: list[Program] = []

    def start(*options: object, **settings: Any) -> Program:
        started.append(Program(*options, **settings))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture(scope="session")
def inject_tier() -> None:
    """Skip, or fail where forced, unless the layer and an OpenCL platform are there."""
    vendors = list(Path("/etc/OpenCL/vendors").glob("*.icd"))
    require("inject", LAYER.exists(), f"{LAYER} is missing: make native")
    require("inject", bool(vendors), "no OpenCL platform: apt-get install pocl-opencl-icd")


class Capture:
    """The exporter's side: one window over one program."""

    def __init__(self, program: Program) -> None:
        self.source = GpuSource(lambda name: name)
        self.events: list[Event] = []
        self.pids = {program.process.pid}
        start_ns = start_monotonic_ns(program.process.pid)
        assert start_ns is not None
        self.source.know(ProcessKey(program.process.pid, start_ns))
        self.source.begin(time.monotonic_ns())
        self.until(lambda: not self.source.is_idle)

    def step(self) -> None:
        """One round."""
        now_ns = time.monotonic_ns()
        self.source.look(self.pids, now_ns)
        self.events += self.source.step(now_ns)

    def until(self, condition: Callable[[], bool]) -> None:
        """Rounds until the condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.step()
            time.sleep(0.002)

    def finish(self) -> None:
        """Let the lease end, and read what is left."""
        self.source.finish()
        self.until(lambda: self.source.is_idle)
        self.step()

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def rows(self, kind: GpuKind) -> ExecutionArray:
        """All rows of a kind."""
        rows = [event.rows for event in self.of(Executions)]
        every: ExecutionArray = np.concatenate([np.empty(0, EXECUTION), *rows])
        return every[every["kind"] == kind]


def window_over(program: Program) -> tuple[Capture, dict[str, Any]]:
    """A window that is open from before the program's first enqueue until its end."""
    capture = Capture(program)
    program.go()
    capture.until(lambda: program.process.poll() is not None)
    truth = program.truth()
    capture.finish()
    return capture, truth


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
