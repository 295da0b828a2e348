# SPDX-License-Identifier: Apache-2.0
"""Recorders and target programs that run beside the test, so that it can act in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.integration.bpf.recording import LIMIT_S, ROOT, Recording, Truth, record_command

_PAUSE_S = 0.005


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
            ended = self.process.poll() is not None
            assert not ended or condition(), f"{what}: ended first\n{self.stderr.text()}"
            assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S} s"
            time.sleep(_PAUSE_S)

    def truth(self) -> Truth:
        """The first JSON line on standard output."""
        self.wait_for(lambda: self.stdout.text().count("\n") > 0, "a line on stdout")
        truth: Truth = json.loads(self.stdout.text().splitlines()[0])
        return truth

    def go(self) -> None:
        """Let a program that holds go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(LIMIT_S)
        self.stdout.join()
        self.stderr.join()
        return code


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a program in a group of its own; what still runs of that is killed at the end."""
    with subprocess.Popen(
        command,
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


def finished(recorder: Running, output: Path) -> Recording:
    """Wait for a recorder to end by itself."""
    code = recorder.finish()
    return Recording(output, code, recorder.stdout.text(), recorder.stderr.text())


def attach_and_record(
    output: Path, command: Sequence[str], environment: Mapping[str, str], *options: object
) -> Recording:
    """Start a program that holds, attach a recorder, let it go on, and wait for both."""
    with running(command, environment) as target:
        assert target.truth()["ready"] is True
        with attached(output, target.process.pid, *options) as recorder:
            target.go()
            assert target.finish() == 0, target.stderr.text()
            recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    return Recording(output, 0, target.stdout.text(), recording.stderr)
