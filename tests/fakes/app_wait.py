"""Target program: waits for a kernel of known length, on a known line, and prints the truth."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import WAIT_BLOCK, WAIT_SPIN, FakeCuda

MARK = "# WAIT" + " LINE"


def wait_for_gpu(cuda: FakeCuda) -> None:
    """The function that a profile must blame."""
    cuda.synchronize(0)  # WAIT LINE


def wait_line() -> int:
    """Number of the marked line in this file, counted from 1."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(MARK))


def timed_wait(cuda: FakeCuda) -> int:
    """Launch, then wait; how long the wait took, in nanoseconds."""
    cuda.launch(app_common.KERNEL)
    begin_ns = time.monotonic_ns()
    wait_for_gpu(cuda)
    return time.monotonic_ns() - begin_ns


def options_from_command_line() -> argparse.Namespace:
    """Parse the command line."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("ms", type=float, help="length of the kernel in milliseconds")
    parser.add_argument("repeat", type=int, help="number of launches, each with a wait")
    parser.add_argument("--spin", action="store_true", help="wait on the CPU, not off it")
    options = parser.parse_args()
    if options.ms < 0 or options.repeat < 0:
        parser.error("neither number may be negative")
    return options


def main() -> None:
    """Wait and print the truth."""
    options = options_from_command_line()
    cuda = FakeCuda()
    cuda.set_wait_mode(WAIT_SPIN if options.spin else WAIT_BLOCK)
    cuda.set_duration_ns(app_common.KERNEL, round(options.ms * 1e6))
    app_common.hold(options)
    durations_ns = [timed_wait(cuda) for _ in range(options.repeat)]
    app_common.emit(
        {
            "pid": os.getpid(),
            "kernel": app_common.KERNEL,
            "function": wait_for_gpu.__name__,
            "file": str(Path(__file__).resolve()),
            "line": wait_line(),
            "waits": len(durations_ns),
            "slept": cuda.counters().sleeps,
            "inside_ns": cuda.api_count("cuStreamSynchronize").duration_ns,
            "duration_ns": durations_ns,
            "spin": options.spin,
        }
    )


if __name__ == "__main__":
    app_common.run(main)
