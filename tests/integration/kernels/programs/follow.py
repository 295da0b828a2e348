# SPDX-License-Identifier: Apache-2.0
"""Captures late_work.py with everything that the kernel can give, into a file, and prints what it could not.

The driver is mapped when nothing else makes us look at the process: only the system call's tracepoint tells of it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.events.capture_writer import CaptureWriter

_STEP_NS = 20_000_000
_LIMIT_S = 500
# A new process is looked at again for a second after it has changed.
_QUIET_S = 1.5


class Follower:
    """Steps a capture until something has happened, and writes all its events."""

    def __init__(self, live: LiveCapture, file: IO[bytes]) -> None:
        self._live = live
        self._writer = CaptureWriter(file, created={})
        self._writer.write(live.start_event())

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until the condition holds; exits when it never does."""
        deadline = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                sys.exit("nothing came within the limit")
            for event in self._live.step(_STEP_NS):
                self._writer.write(event)

    def look_to_the_end(self) -> None:
        """Step until every look at a process that has changed is over."""
        quiet = time.monotonic() + _QUIET_S
        self.until(lambda: time.monotonic() > quiet)

    def finish(self) -> None:
        """Write what is left."""
        for event in self._live.finish():
            self._writer.write(event)
        self._writer.close()


def say(target: subprocess.Popen[str], word: str) -> None:
    """Tell the target its next step."""
    assert target.stdin is not None
    target.stdin.write(f"{word}\n")
    target.stdin.flush()


def has_said_something(target: subprocess.Popen[str]) -> bool:
    """Whether there is a line to read."""
    assert target.stdout is not None
    return bool(select.select([target.stdout], [], [], 0)[0])


def follow(target: subprocess.Popen[str], output: Path) -> dict[str, object]:
    """Capture the target through its steps; what the kernel refused."""
    options = LiveOptions(pids=(target.pid,), cpu=True, driver=True, devices=(Path("/dev/zero"),))
    with output.open("wb") as file, LiveCapture(options) as live:
        follower = Follower(live, file)
        follower.look_to_the_end()
        say(target, "load")
        follower.until(lambda: has_said_something(target))
        follower.until(lambda: bool(live.attachments.libraries))
        follower.look_to_the_end()
        say(target, "work")
        follower.until(lambda: target.poll() is not None)
        follower.finish()
        return {"missing": live.report.missing, "uprobe_multi": live.report.uprobe_multi}


def main() -> None:
    """Arguments: the capture file, then the target's command."""
    with subprocess.Popen(
        sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        try:
            report = follow(target, Path(sys.argv[1]))
        finally:
            target.kill()
        stdout, _ = target.communicate()
    print(json.dumps({**report, "target": [json.loads(line) for line in stdout.splitlines()]}))


if __name__ == "__main__":
    main()
