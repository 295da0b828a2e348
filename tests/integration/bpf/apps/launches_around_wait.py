# SPDX-License-Identifier: Apache-2.0
"""Target program: launches inside of a wait, at each SIGUSR1, and from deeper on the stack once it is over."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from tests.fakes import app_common, steps
from tests.fakes.cuda_driver import FakeCuda

INSIDE = 7
AFTER = 100
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


def main() -> None:
    """Launch, wait until a line comes, launch again when another one does, and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()

    def launch_inside(_number: int) -> None:
        for _ in range(INSIDE):
            cuda.launch(app_common.KERNEL)
        steps.say({"launched": "inside"})

    # Python's own handlers only run when the call has returned.
    handler = _HANDLER(launch_inside)
    ctypes.CDLL(None).signal(int(signal.SIGUSR1), handler)
    app_common.hold(options)
    cuda.launch(app_common.KERNEL)
    cuda.hold_waits(sys.stdin.fileno())
    steps.say({"waiting": True})
    cuda.synchronize()
    sys.stdin.readline()
    steps.say({"waited": True})
    sys.stdin.readline()
    # `sorted` puts frames of C between: Python calls Python without any.
    sorted(range(AFTER), key=lambda _: cuda.launch(app_common.KERNEL) or 0)
    app_common.emit({"pid": os.getpid(), "launches": cuda.counters().launches})


if __name__ == "__main__":
    app_common.run(main)
