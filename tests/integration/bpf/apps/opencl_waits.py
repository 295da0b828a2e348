# SPDX-License-Identifier: Apache-2.0
"""Target program: OpenCL calls that wait, and calls that do not, each on a marked line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.fakes import app_common
from tests.fakes.app_opencl import KERNEL, SOURCE, make_queue

MARK = "  # " + "LINE "
SIZE = 1 << 20
SIZE_BYTES = 4 * SIZE
RECTANGLE = (64, 3, 5)
"""Bytes, rows, slices."""


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


def blocking_map(cl: Any, queue: Any, buffer: Any) -> None:
    """A map that returns when the memory is there."""
    flags, shape = cl.map_flags.READ, (SIZE,)
    view, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, shape, "f4")  # LINE blocking_map
    view.base.release(queue)


def blocking_image_map(cl: Any, queue: Any, image: Any) -> None:
    """The same of an image."""
    flags, shape = cl.map_flags.READ, (4, 4, 4)
    view = cl.enqueue_map_image(  # LINE blocking_image_map
        queue, image, flags, (0, 0, 0), (4, 4, 1), shape, "u1"
    )
    view[0].base.release(queue)


def blocking_rectangles(cl: Any, queue: Any, host: Any, buffer: Any) -> None:
    """Copies of rectangles, one each way."""
    place = {"buffer_origin": (0, 0, 0), "host_origin": (0, 0, 0), "region": RECTANGLE}
    cl.enqueue_copy(queue, host, buffer, is_blocking=True, **place)  # LINE blocking_rectangles
    cl.enqueue_copy(queue, buffer, host, is_blocking=True, **place)


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

    context, queue = make_queue(cl, profiling=True)
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
    pixels = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
    blocking_map(cl, queue, first)
    blocking_image_map(cl, queue, cl.create_image(context, cl.mem_flags.READ_WRITE, pixels, (4, 4)))
    blocking_rectangles(cl, queue, host, first)
    origins = {"src_origin": (0, 0, 0), "dst_origin": (0, 0, 0), "region": RECTANGLE}
    cl.enqueue_copy(queue, first, second, **origins)
    queue.finish()
    app_common.emit({"pid": os.getpid(), "lines": marked_lines(), "size_bytes": SIZE_BYTES})


if __name__ == "__main__":
    app_common.run(main)
