# SPDX-License-Identifier: Apache-2.0
"""Target program for any supported Python: bends the chain of its frames in memory, launches, and mends it again."""

import ctypes
import functools
import gc
import json
import os
import sys

from otel_gpuflame.symbolize.cpython.layouts import layout_of

SHAPES = ("whole", "circle", "self", "wild")
NOWHERE = 0x10
PYTHON = layout_of(sys.version_info[:2]).python
GET = ctypes.pythonapi.PyThreadState_Get
GET.restype = ctypes.c_void_p


def word(address):
    """Eight bytes of memory."""
    return ctypes.c_uint64.from_address(address)


def frames_of_caller(count):
    """Addresses of the frames of the caller, and of those that have called it."""
    frame = word(GET() + PYTHON.thread_frame).value
    if PYTHON.has_cframe:
        frame = word(frame + PYTHON.cframe_frame).value
    found = []
    for _ in range(count + 1):
        found.append(frame)
        frame = word(frame + PYTHON.frame_previous).value
    return found[1:]


def inner(shape, launch):
    """The chain is bent while this one launches: nothing returns through it meanwhile."""
    own, middle_frame, outer_frame = frames_of_caller(3)
    slot = word(outer_frame + PYTHON.frame_previous)
    mended = slot.value
    bent = {"whole": mended, "circle": middle_frame, "self": outer_frame, "wild": NOWHERE}[shape]
    assert own != middle_frame
    slot.value = bent
    result = launch()
    slot.value = mended
    assert result == 0


def middle(shape, launch):
    """In between."""
    inner(shape, launch)


def outer(shape, launch):
    """Its frame gets another caller."""
    middle(shape, launch)


class Launch:
    """A launch that takes no frame of Python: a C function with all its arguments."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        self.cuda.cuInit(0)
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuda.cuCtxSetCurrent(context)
        self.cuda.cuModuleLoadData(ctypes.byref(module), b"fake image")
        self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"_Z5saxpyPfS_fi")

    def numbered(self, number):
        """A callable that launches a grid of that many blocks."""
        none = ctypes.c_void_p()
        rest = (1, 1, 32, 1, 1, 0, none, none, none)
        return functools.partial(self.cuda.cuLaunchKernel, self.function, number, *rest)


def main():
    """Launch once in each shape."""
    launch = Launch()
    gc.disable()
    print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
    sys.stdin.readline()
    for number, shape in enumerate(SHAPES, 1):
        outer(shape, launch.numbered(number))
    print(json.dumps({"pid": os.getpid(), "shapes": SHAPES, "version": sys.version}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
