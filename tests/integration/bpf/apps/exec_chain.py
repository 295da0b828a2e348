# SPDX-License-Identifier: Apache-2.0
"""Target program: launches, then becomes another program that launches."""

from __future__ import annotations

import os
import sys

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def launch_before_exec(cuda: FakeCuda, count: int) -> None:
    """The frame that only the first program has."""
    cuda.launch_many(app_common.KERNEL, count)


def main() -> None:
    """Launch `first` times, wait, then execute the rest of the command line with this Python; --hold is for both."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("first", type=int)
    parser.add_argument("ms", type=int, help="length of the last kernel")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    launch_before_exec(cuda, options.first - 1)
    cuda.set_duration_ns(app_common.KERNEL, options.ms * 1_000_000)
    launch_before_exec(cuda, 1)
    cuda.synchronize()
    app_common.emit({"pid": os.getpid(), "launches": cuda.counters().launches})
    held = ["--hold"] if options.hold else []
    os.execv(sys.executable, [sys.executable, *options.program, *held])


if __name__ == "__main__":
    app_common.run(main)
