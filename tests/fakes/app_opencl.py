"""Target program: an exact number of OpenCL kernel enqueues, with the device's own times."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

KERNEL = "saxpy"
CUDA_KERNEL = "_Z3addPf"
SOURCE = """
__kernel void saxpy(__global float *y, __global const float *x, float a)
{
    size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
}
"""
NO_PLATFORM = (
    "app_opencl.py: no OpenCL platform is found; install PoCL, which runs OpenCL on the CPU:"
    " apt-get install pocl-opencl-icd ocl-icd-libopencl1"
)


def make_queue(cl: Any, *, profiling: bool) -> tuple[Any, Any]:
    """A context and a queue on the first device; one with `profiling` keeps the times of its commands."""
    try:
        platform = cl.get_platforms()[0]
    except (cl.LogicError, IndexError):
        sys.exit(NO_PLATFORM)
    context = cl.Context([platform.get_devices()[0]])
    properties = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
    return context, cl.CommandQueue(context, properties=properties)


def enqueue_loop(cl: Any, kernel: Any, queue: Any, options: Any) -> list[Any]:
    """The frame that a profile shows above the enqueues."""
    return [
        cl.enqueue_nd_range_kernel(queue, kernel, (options.size,), None)
        for _ in range(options.count)
    ]


def launch_loop(cuda: FakeCuda, options: Any) -> None:
    """The same for the other driver, and a wait."""
    for _ in range(options.cuda):
        cuda.launch(CUDA_KERNEL)
    cuda.synchronize()


def times_of(cl: Any, event: Any) -> dict[str, int]:
    """Device times of one enqueue, in nanoseconds of the OpenCL clock."""
    info = cl.profiling_info
    return {
        "queued_ns": event.get_profiling_info(info.QUEUED),
        "start_ns": event.get_profiling_info(info.START),
        "end_ns": event.get_profiling_info(info.END),
    }


def main() -> None:
    """Enqueue and print the truth."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("count", type=int, help="kernel enqueues in all")
    parser.add_argument("--size", type=int, default=1 << 16, help="elements a kernel works on")
    parser.add_argument("--plain-queue", action="store_true", help="a queue that keeps no times")
    parser.add_argument("--cuda", type=int, default=0, help="launches on the fake driver, besides")
    options = parser.parse_args()
    if options.count < 0 or options.size < 1:
        parser.error("count must not be negative and --size at least 1")
    try:
        import numpy as np  # noqa: PLC0415 - a clear error where they are missing
        import pyopencl as cl  # noqa: PLC0415
    except ImportError:
        sys.exit("app_opencl.py: pyopencl is not installed: pip install pyopencl")
    context, queue = make_queue(cl, profiling=not options.plain_queue)
    cuda = FakeCuda() if options.cuda else None
    app_common.hold(options)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), KERNEL)
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * options.size) for _ in range(2)]
    kernel.set_args(*buffers, np.float32(2.0))
    events = enqueue_loop(cl, kernel, queue, options)
    if cuda is not None:
        launch_loop(cuda, options)
    queue.finish()
    executions = [] if options.plain_queue else [times_of(cl, event) for event in events]
    app_common.emit(
        {
            "pid": os.getpid(),
            "kernel": KERNEL,
            "enqueues": len(events),
            "finishes": 1,
            "kernel_ns": sum(times["end_ns"] - times["start_ns"] for times in executions),
            "executions": executions,
        }
    )


if __name__ == "__main__":
    app_common.run(main)
