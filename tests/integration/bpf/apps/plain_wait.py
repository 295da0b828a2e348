# SPDX-License-Identifier: Apache-2.0
"""Target program for any Python from 3.6 on, by ctypes alone: waits, and prints the stack that waited."""

import ctypes
import json
import os
import sys

KERNEL_NS = 100000000


class Driver:
    """The few driver calls that it takes to wait."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        self.cuda.cuInit(0)
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuda.cuCtxSetCurrent(context)
        self.cuda.cuModuleLoadData(ctypes.byref(module), b"fake image")
        self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"_Z5saxpyPfS_fi")
        self.cuda.fake_cuda_set_duration_ns(b"_Z5saxpyPfS_fi", ctypes.c_uint64(KERNEL_NS))

    def launch(self):
        """Give the device something to wait for."""
        none = ctypes.c_void_p()
        arguments = (1, 1, 1, 32, 1, 1, 0, none, none, none)
        result = self.cuda.cuLaunchKernel(self.function, *arguments)
        if result != 0:
            sys.exit(f"cuLaunchKernel returned {result}")


def this_stack():
    """(name, line) of every frame of the caller, root first: what a profile must show."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        frames.insert(0, (name, frame.f_lineno))
        frame = frame.f_back
    return frames


def wait_for_gpu(driver):
    """The wait, and its stack: both on one line."""
    return driver.cuda.cuStreamSynchronize(None), this_stack()


def decorated(function):
    """Put a frame in between."""

    def wrapper(*arguments):
        return function(
            *arguments,
        )

    return wrapper


class Model:
    """Calls through a method, a decorator and a lambda, over several lines each."""

    @decorated
    def step(self, driver):
        """Wait."""
        indirect = lambda given: wait_for_gpu(  # noqa: E731, PLW0108
            given,
        )
        waits = [
            1,
            indirect(driver),
        ]
        return waits[1]


def generate(driver, count):
    """Wait in a generator, while an exception is being handled."""
    for _ in range(count):
        driver.launch()
        try:
            raise ValueError
        except ValueError:
            yield Model().step(
                driver,
            )


def main():
    """Say that the driver is initialised, wait for a line, then wait for the GPU."""
    driver = Driver()
    print(json.dumps({"ready": True, "pid": os.getpid()}))
    sys.stdout.flush()
    sys.stdin.readline()
    results = list(generate(driver, 3))
    stacks = [stack for _, stack in results]
    print(json.dumps({"pid": os.getpid(), "stacks": stacks, "version": sys.version}))
    sys.stdout.flush()
    if os.environ.get("FAKE_APP_STAYS"):
        sys.stdin.readline()


if __name__ == "__main__":
    main()
