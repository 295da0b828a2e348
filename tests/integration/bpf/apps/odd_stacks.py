# SPDX-License-Identifier: Apache-2.0
"""Target program: one launch and wait, in a process where frames are hard to find."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

KERNEL_NS = 300_000_000
THREADS = 400
DEPTH = 200
MARK = "  # " + "WAIT LINE"


def wait_here(cuda: FakeCuda) -> None:
    """The function that a profile must blame."""
    cuda.launch(app_common.KERNEL)
    cuda.synchronize()  # WAIT LINE


def deep(cuda: FakeCuda, depth: int = DEPTH) -> None:
    """Below more Python frames than the walk takes."""
    if depth:
        deep(cuda, depth - 1)
    else:
        wait_here(cuda)


def many_threads(cuda: FakeCuda) -> None:
    """In the oldest of many threads: the interpreter lists the newest first."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    wait_here(cuda)
    done.set()
    for thread in threads:
        thread.join()


def subinterpreter(cuda: FakeCuda) -> None:
    """In the main interpreter, while there is a newer one."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        other = interpreters.create()
        wait_here(cuda)
        interpreters.destroy(other)
        return


def wait_line() -> int:
    """Number of the marked line in this file."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(MARK))


SHAPES: dict[str, Callable[[FakeCuda], None]] = {
    each.__name__: each for each in (deep, many_threads, subinterpreter)
}


def main() -> None:
    """Wait in the chosen shape and print the truth."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("shape", choices=SHAPES)
    options = parser.parse_args()
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, KERNEL_NS)
    app_common.hold(options)
    SHAPES[options.shape](cuda)
    launches = cuda.counters().launches
    truth = {"function": wait_here.__name__, "line": wait_line(), "launches": launches}
    app_common.emit({"pid": os.getpid(), **truth})


if __name__ == "__main__":
    app_common.run(main)
