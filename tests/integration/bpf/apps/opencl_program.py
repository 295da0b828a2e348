# SPDX-License-Identifier: Apache-2.0
"""Target program: kernels of a whole OpenCL program at once, of which one is never asked for its name."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from tests.fakes import app_common
from tests.fakes.app_opencl import make_queue

SOURCE = """
__kernel void asked(__global float *y) { y[0] = 1; }
__kernel void unasked(__global float *y) { y[0] = 2; }
"""
FUNCTION_NAME = 0x1190


def mapped_loader() -> str:
    """The loader that pyopencl uses: a wheel brings its own."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line.split()[-1] for line in lines if "/libOpenCL" in line)


def name_of(library: Any, kernel: int) -> str:
    """What the driver says."""
    text, size = ctypes.create_string_buffer(64), ctypes.c_size_t()
    handle = ctypes.c_void_p(kernel)
    # As programs do it: the size first. That question has no answer that could be read.
    library.clGetKernelInfo(handle, FUNCTION_NAME, ctypes.c_size_t(0), None, ctypes.byref(size))
    library.clGetKernelInfo(handle, FUNCTION_NAME, size, text, None)
    return text.value.decode()


def main() -> None:
    """Launch each kernel, the asked one after it was asked for; print how often."""
    options = app_common.parser(__doc__ or "").parse_args()
    import pyopencl as cl  # noqa: PLC0415 - as in app_opencl

    context, queue = make_queue(cl, profiling=True)
    app_common.hold(options)
    program = cl.Program(context, SOURCE).build()
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
    library = ctypes.CDLL(mapped_loader())
    kernels = (ctypes.c_void_p * 2)()
    handle = ctypes.c_void_p(program.int_ptr)
    if library.clCreateKernelsInProgram(handle, 2, kernels, None):
        raise SystemExit("clCreateKernelsInProgram failed")
    # Whichever order the driver chose: the second one is not asked.
    asked = name_of(library, kernels[0] or 0)
    memory, size = ctypes.c_void_p(buffer.int_ptr), (ctypes.c_size_t * 1)(1)
    for count, kernel in zip((2, 3), kernels, strict=True):
        pointer = ctypes.c_void_p(kernel)
        library.clSetKernelArg(pointer, 0, ctypes.c_size_t(8), ctypes.byref(memory))
        for _ in range(count):
            library.clEnqueueNDRangeKernel(
                ctypes.c_void_p(queue.int_ptr), pointer, 1, None, size, None, 0, None, None
            )
    queue.finish()
    launches = {asked: 2, "[kernel of unknown name]": 3}
    app_common.emit({"pid": os.getpid(), "launches": launches})


if __name__ == "__main__":
    app_common.run(main)
