"""A pipeline with a wait that it does not need, to look at in a flame graph.

Each iteration runs three kernels over a batch (saxpy, square, reduce) and then reads the sum back,
so the host stands still until the device is done, and the device until the host has looked. With
--fixed the sums stay on the device for a block of iterations and are read back once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

EXAMPLES = """\
examples:
  python examples/opencl_pipeline.py --seconds 10          waits in read_sum() every iteration
  python examples/opencl_pipeline.py --seconds 10 --fixed  waits once a block
"""

NO_PLATFORM = """\
opencl_pipeline.py: no OpenCL platform is found. To run OpenCL on the CPU, install PoCL:
  apt-get install pocl-opencl-icd ocl-icd-libopencl1"""

NO_PYOPENCL = "opencl_pipeline.py: pyopencl is not installed: pip install pyopencl"

SOURCE = """
__kernel void saxpy(__global float *y, __global const float *x, float a)
{
    size_t i = get_global_id(0);
    y[i] = a * x[i] + 0.5f * y[i];
}

__kernel void square(__global const float *y, __global float *z)
{
    size_t i = get_global_id(0);
    z[i] = y[i] * y[i];
}

__kernel void reduce(__global const float *z, __global float *sums, int slot, int slice)
{
    size_t group = get_global_id(0);
    float sum = 0.0f;
    for (int i = 0; i < slice; i++)
        sum += z[group * slice + i];
    sums[slot * get_global_size(0) + group] = sum;
}
"""

SLICES = 64
BLOCK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Kernels and buffers of one run; `elements` floats a batch."""

    cl: Any
    np: Any
    queue: Any
    saxpy: Any
    square: Any
    reduce: Any
    x: Any
    y: Any
    z: Any
    sums: Any
    elements: int


def make_pipeline(elements: int) -> Pipeline:
    """Build the kernels and fill the buffers; exit with the remedy where OpenCL is missing."""
    try:
        import numpy as np  # noqa: PLC0415 - a clear error where they are missing
        import pyopencl as cl  # noqa: PLC0415
    except ImportError:
        sys.exit(NO_PYOPENCL)
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:
        platforms = []
    if not platforms:
        sys.exit(NO_PLATFORM)
    context = cl.Context([platforms[0].get_devices()[0]])
    program = cl.Program(context, SOURCE).build()
    flags = cl.mem_flags
    x = np.linspace(0.0, 1.0, elements, dtype=np.float32)
    return Pipeline(
        cl=cl,
        np=np,
        queue=cl.CommandQueue(context),
        saxpy=cl.Kernel(program, "saxpy"),
        square=cl.Kernel(program, "square"),
        reduce=cl.Kernel(program, "reduce"),
        x=cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=x),
        y=cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=np.zeros_like(x)),
        z=cl.Buffer(context, flags.READ_WRITE, x.nbytes),
        sums=cl.Buffer(context, flags.READ_WRITE, BLOCK * SLICES * x.itemsize),
        elements=elements,
    )


def enqueue_batch(pipeline: Pipeline, slot: int) -> None:
    """Give the device one iteration; its partial sums go to `slot` of the block."""
    np, size = pipeline.np, (pipeline.elements,)
    pipeline.saxpy(pipeline.queue, size, None, pipeline.y, pipeline.x, np.float32(2.0))
    pipeline.square(pipeline.queue, size, None, pipeline.y, pipeline.z)
    slice_length = np.int32(pipeline.elements // SLICES)
    pipeline.reduce(
        pipeline.queue, (SLICES,), None, pipeline.z, pipeline.sums, np.int32(slot), slice_length
    )


def read_sum(pipeline: Pipeline, slots: int) -> Floats:
    """Read the sums of the first `slots` iterations of the block: a blocking read, a wait."""
    partial = pipeline.np.empty((slots, SLICES), dtype=pipeline.np.float32)
    pipeline.cl.enqueue_copy(pipeline.queue, partial, pipeline.sums, is_blocking=True)
    sums: Floats = partial.sum(axis=1)
    return sums


def run_waiting(pipeline: Pipeline, until: float) -> tuple[int, float]:
    """Look at each sum at once: the device idles while the host reads, and the other way round."""
    iterations, last = 0, 0.0
    while time.monotonic() < until:
        enqueue_batch(pipeline, 0)
        pipeline.queue.finish()
        last = float(read_sum(pipeline, 1)[0])
        iterations += 1
    return iterations, last


def run_fixed(pipeline: Pipeline, until: float) -> tuple[int, float]:
    """Look at the sums of a whole block at once."""
    iterations, last = 0, 0.0
    while time.monotonic() < until:
        for slot in range(BLOCK):
            enqueue_batch(pipeline, slot)
        last = float(read_sum(pipeline, BLOCK)[-1])
        iterations += BLOCK
    return iterations, last


def options_from_command_line() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to run (default 10)")
    parser.add_argument("--fixed", action="store_true", help="without the avoidable wait")
    parser.add_argument(
        "--elements",
        type=int,
        default=1 << 14,
        help=f"floats a batch, a multiple of {SLICES} (default 16384)",
    )
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds must be above 0")
    if options.elements < SLICES or options.elements % SLICES:
        parser.error(f"--elements must be a positive multiple of {SLICES}")
    return options


def main() -> None:
    """Run for the given time; print the rate and the last sum, equal with and without --fixed."""
    options = options_from_command_line()
    pipeline = make_pipeline(options.elements)
    print(f"pid {os.getpid()}", flush=True)
    run = run_fixed if options.fixed else run_waiting
    begin = time.monotonic()
    iterations, checksum = run(pipeline, begin + options.seconds)
    rate = iterations / (time.monotonic() - begin)
    print(f"{rate:.1f} iterations/s, checksum {checksum:.3f}")


if __name__ == "__main__":
    main()
