# SPDX-License-Identifier: Apache-2.0
"""Target program: what an OpenCL program may do while a layer holds its handles. `opencl_acts.py ACT`, on plain ctypes.

pyopencl keeps kernels, devices and the loader alive for its own purposes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Final

from tests.fakes import steps

SOURCE: Final = b"__kernel void one(__global float *y) { y[get_global_id(0)] += 1.0f; }"
SIZE: Final = 1024
PROFILING_ENABLE: Final = 1 << 1
READ_WRITE: Final = 1 << 0
ALL_DEVICES: Final = 0xFFFFFFFF
PARTITION_BY_COUNTS: Final = 0x1087
DEVICE_REFERENCE_COUNT: Final = 0x1047
REBUILDS: Final = 40
"""The layer looks at commands every 50 ms: of so many builds, most come between a command's end and that look."""


class OpenCl:
    """The functions of the loader. Each answer that is no success is an error."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libOpenCL.so.1")

    def do(self, function: str, *arguments: object) -> None:
        """Call a function that returns its error."""
        error = c_int32(getattr(self.library, function)(*arguments)).value
        if error:
            raise RuntimeError(f"{function}: {error}")

    def make(self, function: str, *arguments: object) -> c_void_p:
        """Call a function that returns what it made, and takes its error as the last argument."""
        called, error = getattr(self.library, function), c_int32()
        called.restype = c_void_p
        made = called(*arguments, byref(error))
        if error.value:
            raise RuntimeError(f"{function}: {error.value}")
        return c_void_p(made)


class Work:
    """A context, a queue with profiling, and a kernel, on one device."""

    def __init__(self, cl: OpenCl, device: c_void_p) -> None:
        self.cl = cl
        self.context = cl.make("clCreateContext", None, 1, byref(device), None, None)
        self.queue = cl.make(
            "clCreateCommandQueue", self.context, device, c_uint64(PROFILING_ENABLE)
        )
        text = ctypes.c_char_p(SOURCE)
        self.program = cl.make("clCreateProgramWithSource", self.context, 1, byref(text), None)
        self.buffer = cl.make(
            "clCreateBuffer", self.context, c_uint64(READ_WRITE), c_size_t(4 * SIZE), None
        )
        self.kernel = c_void_p()

    def build(self) -> None:
        """Build the program, and make its kernel: refused while anybody holds one of an earlier build."""
        self.cl.do("clBuildProgram", self.program, 0, None, None, None, None)
        self.kernel = self.cl.make("clCreateKernel", self.program, b"one")
        argument = self.buffer
        self.cl.do("clSetKernelArg", self.kernel, 0, c_size_t(8), byref(argument))

    def enqueue(self, after: c_void_p | None = None) -> None:
        """One execution; with `after` it waits for that event."""
        count, waits = (0, None) if after is None else (1, byref(after))
        size = c_size_t(SIZE)
        self.cl.do(
            "clEnqueueNDRangeKernel",
            *(self.queue, self.kernel, 1, None, byref(size), None, count, waits, None),
        )

    def finish(self) -> None:
        """Wait for the queue."""
        self.cl.do("clFinish", self.queue)

    def release_kernel(self) -> None:
        """Ours is the only reference, as far as the program knows."""
        self.cl.do("clReleaseKernel", self.kernel)

    def release(self) -> None:
        """Everything."""
        self.release_kernel()
        for kind, handle in (
            ("Program", self.program),
            ("MemObject", self.buffer),
            ("CommandQueue", self.queue),
            ("Context", self.context),
        ):
            self.cl.do(f"clRelease{kind}", handle)


def first_device(cl: OpenCl) -> c_void_p:
    """Of the first platform."""
    platform, device = c_void_p(), c_void_p()
    cl.do("clGetPlatformIDs", 1, byref(platform), None)
    cl.do("clGetDeviceIDs", platform, c_uint64(ALL_DEVICES), 1, byref(device), None)
    return device


def part_of(cl: OpenCl, device: c_void_p) -> c_void_p:
    """A sub-device of one compute unit."""
    properties = (ctypes.c_ssize_t * 4)(PARTITION_BY_COUNTS, 1, 0, 0)
    part, count = c_void_p(), c_uint32()
    cl.do("clCreateSubDevices", device, properties, 1, byref(part), byref(count))
    return part


def references(cl: OpenCl, device: c_void_p) -> int:
    """Who holds the device."""
    count = c_uint32()
    cl.do("clGetDeviceInfo", device, DEVICE_REFERENCE_COUNT, c_size_t(4), byref(count), None)
    return count.value


def is_mapped(name: str) -> bool:
    """Whether a library is in this process."""
    return name in Path("/proc/self/maps").read_text()


def rebuild(cl: OpenCl, device: c_void_p) -> None:
    """Build again as soon as the last execution is over and the kernel is let go."""
    work = Work(cl, device)
    for _ in range(REBUILDS):
        work.build()
        work.enqueue()
        work.finish()
        work.release_kernel()
    steps.tell({"enqueues": REBUILDS})


def sub_device(cl: OpenCl, device: c_void_p) -> None:
    """Let go of a part of a device while the window goes on, and work on with the whole."""
    part = part_of(cl, device)
    work = Work(cl, part)
    work.build()
    work.enqueue()
    work.finish()
    work.release()
    steps.tell({"enqueues": 1})
    steps.tell({"enqueues": 1, "references": references(cl, part)})
    cl.do("clReleaseDevice", part)
    rest = Work(cl, device)
    rest.build()
    rest.enqueue()
    rest.finish()
    steps.tell({"enqueues": 2})


def close_loader(cl: OpenCl, device: c_void_p) -> None:
    """Let go of everything, the loader too, while the window goes on."""
    work = Work(cl, device)
    work.build()
    work.enqueue()
    work.finish()
    work.release()
    unload = ctypes.CDLL(None).dlclose
    unload.argtypes = [c_void_p]
    unload(cl.library._handle)
    steps.tell({"enqueues": 1, "is_mapped": is_mapped("libOpenCL.so")})


def leave_running(cl: OpenCl, device: c_void_p) -> None:
    """End while a command waits for what never comes."""
    work = Work(cl, device)
    work.build()
    work.enqueue()
    work.finish()
    never = cl.make("clCreateUserEvent", work.context)
    work.enqueue(after=never)
    cl.do("clFlush", work.queue)
    steps.tell({"enqueues": 2})


ACTS: Final[dict[str, Callable[[OpenCl, c_void_p], None]]] = {
    act.__name__: act for act in (rebuild, sub_device, close_loader, leave_running)
}


def main() -> None:
    """Do one act."""
    os.environ[steps.STAYS] = "1"
    cl = OpenCl()
    device = first_device(cl)
    steps.hold()
    ACTS[sys.argv[1]](cl, device)


if __name__ == "__main__":
    main()
