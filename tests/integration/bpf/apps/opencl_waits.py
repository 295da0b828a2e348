# SPDX-License-Identifier: Apache-2.0
"""Target program: OpenCL calls that wait, and calls that do not, each on a marked line."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.fakes import app_common
from tests.fakes.app_opencl import KERNEL, SOURCE, make_queue

MARK = "  # " + "LINE "
SIZE = 1 << 20
SIZE_BYTES = 4 * SIZE
LINGER_S = 1.0
"""Frames are read from the living process."""


def finish(queue: Any) -> None:
    """Wait for the queue."""
    queue.finish()  # LINE finish


def wait_for_event(event: Any) -> None:
    """Wait for one event."""
    event.wait()  # LINE wait_for_event


def blocking_read(cl: Any, queue: Any, host: Any, buffer: Any) -> None:
    """A copy that returns when it is done."""
    cl.enqueue_copy(queue, host, buffer, is_blocking=True)  # LINE blocking_read


def blocking_write(cl: Any, queue: Any, host: Any, buffer: Any) -> None:
    """A copy that returns when it is done."""
    cl.enqueue_copy(queue, buffer, host, is_blocking=True)  # LINE blocking_write


def read_later(cl: Any, queue: Any, host: Any, buffer: Any) -> Any:
    """A copy that only gets queued."""
    return cl.enqueue_copy(queue, host, buffer, is_blocking=False)  # LINE read_later


def marked_lines() -> dict[str, int]:
    """Line numbers of this file by the word after the mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = ((number, line.rpartition(MARK)) for number, line in enumerate(lines, 1))
    return {name: number for number, (_, mark, name) in marked if mark}


def main() -> None:
    """Make the calls and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    import numpy as np  # noqa: PLC0415 - as in app_opencl
    import pyopencl as cl  # noqa: PLC0415

    context, queue = make_queue(cl)
    app_common.hold(options)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), KERNEL)
    host = np.ones(SIZE, np.float32)
    first, second = (cl.Buffer(context, cl.mem_flags.READ_WRITE, SIZE_BYTES) for _ in range(2))
    kernel.set_args(first, second, np.float32(2.0))
    blocking_write(cl, queue, host, first)
    event = cl.enqueue_nd_range_kernel(queue, kernel, (SIZE,), None)
    wait_for_event(event)
    cl.enqueue_nd_range_kernel(queue, kernel, (SIZE // 64, 64), (4, 16))
    cl.enqueue_fill_buffer(queue, second, np.ones(1, np.float32), 0, SIZE_BYTES)
    cl.enqueue_copy(queue, first, second, byte_count=SIZE_BYTES // 2)
    later = read_later(cl, queue, host, first)
    finish(queue)
    blocking_read(cl, queue, host, second)
    later.wait()
    app_common.emit({"pid": os.getpid(), "lines": marked_lines(), "size_bytes": SIZE_BYTES})
    time.sleep(LINGER_S)


if __name__ == "__main__":
    app_common.run(main)
