# SPDX-License-Identifier: Apache-2.0
"""Recorders and target programs that run beside the test, so that it can act in between."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.capture.target import SETTLE_NS
from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import Watermark
from tests.fakes.steps import AGAIN, STAYS
from tests.integration.bpf.recording import (
    LIMIT_S,
    ROOT,
    Capture,
    Recording,
    Truth,
    record_command,
)

_PAUSE_S = 0.005
POLLING: Final = ("7", "73")
"""Numbers of poll on x86-64, and of ppoll on arm64."""


class Output:
    """Collects a stream in a thread, so that no pipe fills up and waiting has an end."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Everything up to now."""
        return "".join(self._lines)

    def join(self) -> str:
        """Everything, once the stream has ended."""
        self._thread.join(LIMIT_S)
        return self.text()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line)


class Running:
    """A started process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdout = Output(process.stdout)
        self.stderr = Output(process.stderr)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds; fails when the process ends before it does."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None:
                # What it has said last may not have been read yet.
                self.stdout.join()
                assert condition(), f"{what}: ended first\n{self.stderr.text()}"
                return
            assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S} s"
            time.sleep(_PAUSE_S)

    def truth(self, number: int = 0) -> Truth:
        """A JSON line on standard output, the first one without a number."""
        self.wait_for(lambda: self.lines_said() > number, "a line on stdout")
        truth: Truth = json.loads(self.stdout.text().splitlines()[number])
        return truth

    def lines_said(self) -> int:
        """How many lines have come on standard output."""
        return self.stdout.text().count("\n")

    def says_more_than(self, lines: int) -> bool:
        """Wait for one more line than these; False when the process ends without."""
        deadline = time.monotonic() + LIMIT_S
        while self.lines_said() <= lines:
            if self.process.poll() is not None:
                self.stdout.join()
                return self.lines_said() > lines
            assert time.monotonic() < deadline, f"neither a line nor an end within {LIMIT_S} s"
            time.sleep(_PAUSE_S)
        return True

    def go(self, line: str = "") -> None:
        """Let a program that holds go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(LIMIT_S)
        self.stdout.join()
        self.stderr.join()
        return code


def wait_until_inside(target: Running) -> None:
    """Until `gated_wait` is inside of its wait for the GPU, where it polls."""
    target.truth(1)
    call = Path(f"/proc/{target.process.pid}/syscall")
    target.wait_for(lambda: call.read_text().split(" ", 1)[0] in POLLING, "the target to wait")


def _ends_with_us() -> list[str]:
    """A prefix that becomes the command, which is killed when this process is; nothing where there is no util-linux."""
    found = shutil.which("setpriv")
    return [] if found is None else [found, "--pdeathsig", "KILL", "--"]


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a program in a group of its own; what still runs of that is killed at the end.

    It also ends with us when we are killed: an agent would capture this host for ever.
    """
    with subprocess.Popen(
        [*_ends_with_us(), *command],
        env=None if environment is None else dict(environment),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Running(process)
        finally:
            # A recorder's command, too: it would keep the pipes open that are closed next.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def attached(output: Path, pid: int, *options: object) -> Iterator[Running]:
    """A recorder of a running process, with all its probes in place."""
    command = record_command(output, options=["--pid", pid, *options])
    with running(command) as recorder:
        # The file gets its first event when everything is attached.
        recorder.wait_for(
            lambda: output.exists() and output.stat().st_size > 0, "the recorder to attach"
        )
        yield recorder


class GrowingFile:
    """A capture file that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size_bytes = 0
        self._complete_ns = 0

    def complete_ns(self) -> int:
        """Everything that happened before this time (CLOCK_MONOTONIC) is in the file, with its frames."""
        size_bytes = self._path.stat().st_size if self._path.exists() else 0
        if size_bytes == self._size_bytes:
            return self._complete_ns
        self._size_bytes = size_bytes
        with contextlib.suppress(CaptureFileError), ReplaySource(self._path) as source:
            times = [event.time_ns for event in source.events() if isinstance(event, Watermark)]
            self._complete_ns = max(times, default=0)
        return self._complete_ns

    def capture(self) -> Capture:
        """What is in there by now."""
        with ReplaySource(self._path, call_dtype=wire.CALL) as source:
            return Capture(list(source.events()))

    def wait_for(self, recorder: Running, time_ns: int) -> None:
        """Wait until everything before this time is in there."""
        recorder.wait_for(lambda: self.complete_ns() >= time_ns, "the recorder to catch up")


def keep_step(recorder: Running, program: Running, output: Path, *, heard: int = 0) -> None:
    """Let a program that stays after each line go on when all that it did is in the file, until it ends.

    `heard` lines have been answered already.
    """
    file = GrowingFile(output)
    while program.says_more_than(heard):
        said = program.truth(heard)
        heard += 1
        file.wait_for(recorder, time.monotonic_ns())
        if "ready" in said:
            # What it has mapped is reported; the recorder looks at it when the mapping has settled.
            file.wait_for(recorder, time.monotonic_ns() + SETTLE_NS)
        program.go()


def record_in_step(
    output: Path,
    *command: object,
    environment: Mapping[str, str],
    options: Sequence[object] = (),
) -> Recording:
    """Record a command from its start, which stays until what it did has been read.

    With --hold it also makes its first call only when the recorder knows its interpreter and libraries.
    """
    with running(
        record_command(output, *command, options=options), {**environment, STAYS: "1"}
    ) as recorder:
        keep_step(recorder, recorder, output)
        return finished(recorder, output)


def finished(recorder: Running, output: Path) -> Recording:
    """Wait for a recorder to end by itself."""
    code = recorder.finish()
    return Recording(output, code, recorder.stdout.text(), recorder.stderr.text())


def attach_and_record(
    output: Path, command: Sequence[str], environment: Mapping[str, str], *options: object
) -> Recording:
    """Start a program that holds, attach a recorder, let it go on, and wait for both.

    The program stays until what it did has been read.
    """
    with running(command, {**environment, STAYS: "1"}) as target:
        assert target.truth()["ready"] is True
        with attached(output, target.process.pid, *options) as recorder:
            target.go()
            return _ended(output, recorder, target, heard=1)


def attach_and_record_until(
    until: Callable[[Capture], bool],
    output: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    *options: object,
) -> Recording:
    """As above, of a program that does its work again until the capture has what is wanted."""
    with running(command, {**environment, STAYS: "1"}) as target:
        assert target.truth()["ready"] is True
        with attached(output, target.process.pid, *options) as recorder:
            target.go()
            heard = 1
            deadline = time.monotonic() + LIMIT_S
            file = GrowingFile(output)
            while True:
                target.truth(heard)
                heard += 1
                file.wait_for(recorder, time.monotonic_ns())
                if until(file.capture()):
                    break
                assert time.monotonic() < deadline, f"the capture lacks it after {heard - 1} times"
                target.go(AGAIN)
            target.go()
            return _ended(output, recorder, target, heard=heard)


def _ended(output: Path, recorder: Running, target: Running, *, heard: int) -> Recording:
    """Let a program go on to its end, `heard` lines of which have been answered; wait for its recorder."""
    keep_step(recorder, target, output, heard=heard)
    assert target.finish() == 0, target.stderr.text()
    recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    return Recording(output, 0, target.stdout.text(), recording.stderr)
