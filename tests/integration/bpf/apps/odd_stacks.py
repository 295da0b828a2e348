# SPDX-License-Identifier: Apache-2.0
"""Target program: one launch and wait, in a process where frames are hard to find."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

KERNEL_NS = 10_000_000
THREADS = 400
TOO_MANY_THREADS = 1100
"""512 are searched at a time: the oldest is found with the third call that looks for it."""
WAITS = 5
DEPTH = 400
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
    with idle_threads(THREADS):
        wait_here(cuda)


def too_many_threads(cuda: FakeCuda) -> None:
    """In the oldest of more threads than are searched at a time, again and again."""
    with idle_threads(TOO_MANY_THREADS):
        for _ in range(WAITS):
            wait_here(cuda)


def foreign_thread(cuda: FakeCuda) -> None:
    """In a thread that C made, first without Python, then in a function of Python that C calls."""
    from_c = ctypes.CFUNCTYPE(None)(lambda: wait_here(cuda))
    library = ctypes.CDLL(os.environ["FOREIGN_THREAD"])
    cuda.launch(app_common.KERNEL)
    assert library.wait_then_call(WAITS, from_c) == 0


@contextlib.contextmanager
def idle_threads(count: int) -> Iterator[None]:
    """Threads that are younger than the one that asked for them."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(count)]
    threading.stack_size(1 << 16)
    for thread in threads:
        thread.start()
    yield
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
    each.__name__: each
    for each in (deep, many_threads, too_many_threads, foreign_thread, subinterpreter)
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
