"""Programs on PoCL under the OpenCL layer, and the exporter's side of a window over one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

import numpy as np

from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray, Executions
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.symbolize.start_time import start_monotonic_ns
from tests.fakes.build import ROOT

LAYER: Final = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_opencl.so"
LIMIT_S: Final = 300


class Program:
    """A program under the layer, held until `go`."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = {**os.environ, "OPENCL_LAYERS": str(LAYER), "PYTHONPATH": str(ROOT)}
        # Files, since nobody reads while the program runs, and its truth is longer than a pipe.
        self._output, self._errors = (tempfile.TemporaryFile("w+") for _ in "oe")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            text=True,
        )
        self._wait_until_ready()

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self) -> list[dict[str, Any]]:
        """Its lines up to now, whole ones only."""
        lines = _text(self._output).rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

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


class Capture:
    """The exporter's side: one window over one program."""

    def __init__(self, program: Program) -> None:
        self.source = GpuSource(lambda name: name)
        self.events: list[Event] = []
        self.read_ns = 0
        """Up to when everything has been read."""
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
        self.read_ns = now_ns

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
