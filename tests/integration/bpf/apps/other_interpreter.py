# SPDX-License-Identifier: Apache-2.0
"""Target program for any supported Python: launches in a second interpreter; prints the whole stack of each launch."""

import ctypes
import importlib
import json
import os
import sys
import threading

# What the second interpreter runs. It has its own modules, and hands its half of the stack over in a file.
SCRIPT = """
import ctypes, json, sys

def stack():
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.insert(0, (getattr(frame.f_code, "co_qualname", frame.f_code.co_name), frame.f_lineno))
        frame = frame.f_back
    return frames

class Inner:
    def launch(self):
        cuda = ctypes.CDLL("libcuda.so.1")
        none = ctypes.c_void_p()
        rest = (1, 1, 32, 1, 1, 0, none, none, none)
        launch, function = cuda.cuLaunchKernel, ctypes.c_void_p({function})
        return launch(function, {number}, *rest), stack()

def through_c(_):
    result, frames = Inner().launch()
    assert result == 0
    with open({path!r}, "w") as file:
        json.dump(frames, file)
    # This code is gone when the script has ended: it stays until its frames have been read.
    print(json.dumps({{"launch": {number}}}), flush=True)
    sys.stdin.readline()

list(map(through_c, [0]))
"""


def other_interpreter():
    """A new interpreter, and what runs a script in one: a module without a promise, renamed in 3.13."""
    if sys.version_info >= (3, 13):
        interpreters = importlib.import_module("_interpreters")
        return interpreters.create("legacy"), interpreters.run_string
    interpreters = importlib.import_module("_xxsubinterpreters")
    return interpreters.create(isolated=False), interpreters.run_string


def this_stack():
    """(name, line) of every frame of the caller, root first."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        frames.insert(0, (name, frame.f_lineno))
        frame = frame.f_back
    return frames


def enter(function, number, path, stacks):
    """Launch in a new interpreter, which there was none of when the recorder came."""
    interpreter, run = other_interpreter()
    script = SCRIPT.format(function=function.value, number=number, path=path)
    failed, outer = run(interpreter, script), this_stack()
    if failed:
        raise SystemExit(str(failed))
    with open(path) as file:
        stacks.append(outer + json.load(file))


def main():
    """PATH of a file for the inner halves: launch in the main thread, and in another one."""
    path = sys.argv[1]
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuModuleLoadData(ctypes.byref(module), b"fake image")
    cuda.cuModuleGetFunction(ctypes.byref(function), module, b"_Z5saxpyPfS_fi")
    print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
    sys.stdin.readline()
    stacks = []
    enter(function, 1, path, stacks)

    def in_thread():
        cuda.cuCtxSetCurrent(context)
        enter(function, 2, path, stacks)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    print(json.dumps({"pid": os.getpid(), "stacks": stacks, "version": sys.version}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
