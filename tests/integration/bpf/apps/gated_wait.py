# SPDX-License-Identifier: Apache-2.0
"""Target program: a wait for the GPU that ends when a line comes on stdin, and not before."""

from __future__ import annotations

import os
import sys

from tests.fakes import app_common, steps
from tests.fakes.cuda_driver import FakeCuda


def main() -> None:
    """Launch, wait, and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    cuda.launch(app_common.KERNEL)
    cuda.hold_waits(sys.stdin.fileno())
    steps.say({"waiting": True})
    cuda.synchronize()
    sys.stdin.readline()
    app_common.emit({"pid": os.getpid(), "waits": cuda.counters().waits})


if __name__ == "__main__":
    app_common.run(main)
