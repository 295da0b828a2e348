# SPDX-License-Identifier: Apache-2.0
"""Target program: launches and waits without a pause until a line comes on stdin; prints how often and how long."""

from __future__ import annotations

import os
import select
import sys
import time

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def main() -> None:
    """Launch, wait, and print the truth: from the first wait on."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    waits = waited_ns = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        cuda.launch_many(app_common.KERNEL, 1)
        begin_ns = time.monotonic_ns()
        cuda.synchronize()
        waited_ns += time.monotonic_ns() - begin_ns
        waits += 1
    sys.stdin.readline()
    app_common.emit({"pid": os.getpid(), "waits": waits, "waited_ns": waited_ns})


if __name__ == "__main__":
    app_common.run(main)
