# SPDX-License-Identifier: Apache-2.0
"""Target program: does each step when it is told to, so that a capture can follow in between.

`load` maps the driver, `work` makes launches in a span and in a child, system calls on a device, pauses, and a burst
on the CPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time

from tests.fakes import app_common
from tests.fakes.app_fork import launch_in_fork
from tests.fakes.app_launch import active_span, start_tracing
from tests.fakes.cuda_driver import FakeCuda

COUNT = 23
COUNT_IN_CHILD = 7
DEVICE = "/dev/zero"
COMMAND = 0x4601
PAUSE_S = 0.02
BURST_NS = 500_000_000


def wait_for(word: str) -> None:
    """The next line on standard input must be this."""
    line = sys.stdin.readline().strip()
    if line != word:
        sys.exit(f"expected {word!r}, got {line!r}")


def call_device() -> None:
    """The device knows no commands: each call fails, and is a call all the same."""
    with open(DEVICE, "rb") as device:
        for _ in range(COUNT):
            with contextlib.suppress(OSError):
                fcntl.ioctl(device, COMMAND)


def burn() -> None:
    """Use the CPU, by its own clock: the machine may be busy."""
    end_ns = time.process_time_ns() + BURST_NS
    while time.process_time_ns() < end_ns:
        pass


def main() -> None:
    """Follow the steps."""
    wait_for("load")
    start_tracing()
    cuda = FakeCuda()
    print(json.dumps({"loaded": True}), flush=True)
    wait_for("work")
    with active_span(wanted=True) as ids:
        for _ in range(COUNT):
            cuda.launch(app_common.KERNEL)
    call_device()
    for _ in range(COUNT):
        time.sleep(PAUSE_S)
    burn()
    child = launch_in_fork(COUNT_IN_CHILD)
    print(json.dumps({**ids, "pid": os.getpid(), "child": child}), flush=True)


if __name__ == "__main__":
    app_common.run(main)
