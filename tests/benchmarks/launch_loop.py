"""Target with an interpreter: as launch_loop.c, with a given number of Python frames at the launch.

Run on the fake driver (tests/fakes): python -m tests.benchmarks.launch_loop DEPTH [--span]
"""

from __future__ import annotations

import sys
import time
from types import FrameType

from tests.fakes import app_common
from tests.fakes.app_launch import active_span, start_tracing
from tests.fakes.cuda_driver import FakeCuda


def depth() -> int:
    """Python frames of the caller."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def serve(cuda: FakeCuda) -> None:
    """Launch as often as each line of standard input says; print nanoseconds."""
    for line in sys.stdin:
        begin_ns = time.monotonic_ns()
        cuda.launch_many(app_common.KERNEL, int(line))
        print(time.monotonic_ns() - begin_ns, flush=True)


def descend(cuda: FakeCuda, wanted: int) -> None:
    """Recurse until `serve` and the method that it calls make `wanted` frames."""
    if depth() + 2 < wanted:
        descend(cuda, wanted)
    else:
        serve(cuda)


def main() -> None:
    """Set up and serve."""
    span = "--span" in sys.argv[2:]
    if span and not start_tracing():
        sys.exit("span publication is off: make -C otel_gpuflame/native")
    cuda = FakeCuda()
    cuda.function(app_common.KERNEL)
    with active_span(wanted=span):
        descend(cuda, int(sys.argv[1]))


if __name__ == "__main__":
    app_common.run(main)
