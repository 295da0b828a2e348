# SPDX-License-Identifier: Apache-2.0
"""Target program: PyTorch itself, with passes in one another until its engine hands them to threads of its own.

Each backward function launches a kernel on the fake driver. Without a GPU all nodes run in the thread that called
`backward`, but for passes nested deeper than the engine does in one thread (60): these get another thread, which has
only its own Python frames.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import FrameType
from typing import Any

import torch

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

DEPTH = 61
THREADS = 4
Frames = tuple[tuple[str, int], ...]


class Program:
    """Notes under which Python frames each kernel is launched."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.truth: dict[str, Frames] = {}
        self.own: dict[str, int] = {}
        """How many of the frames are those of the thread that launched."""
        self.waits_for: dict[int, int] = {}
        """Thread -> the thread whose pass it runs, which waits for it."""
        self.handed_over = 0

    def launch(self, caller: int) -> None:
        """Launch a kernel in a node of a pass that thread `caller` has begun."""
        me = threading.get_ident()
        if me != caller:
            self.waits_for[me] = caller
            self.cuda.bind_thread()
        self.handed_over += me in self.waits_for
        name = f"kernel_{me}_{len(self.truth)}"
        function, launch = ctypes.c_void_p(self.cuda.function(name)), self.cuda._cuda.cuLaunchKernel
        # fmt: off
        code = launch(function, 1, 1, 1, 32, 1, 1, 0, None, None, self.note(name))
        # fmt: on
        assert code == 0

    def note(self, name: str) -> None:
        """Those of this thread above those of the thread that waits for it, and so on."""
        me = threading.get_ident()
        frames = frames_of(sys._getframe(1))
        self.own[name] = len(frames)
        while me in self.waits_for:
            me = self.waits_for[me]
            frames = frames_of(sys._current_frames()[me]) + frames
        self.truth[name] = frames


def frames_of(frame: FrameType | None) -> Frames:
    """(file, line), root first."""
    found = []
    while frame is not None:
        found.append((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


class Nested(torch.autograd.Function):
    """Its backward function runs a pass of its own."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, program: Program, depth: int, caller: int) -> Any:
        """The identity."""
        ctx.program, ctx.depth, ctx.caller = program, depth, caller
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Launch, and go one pass deeper."""
        ctx.program.launch(ctx.caller)
        if ctx.depth:
            run(ctx.program, ctx.depth - 1)
        return grads[0], None, None, None


def run(program: Program, depth: int) -> None:
    """A pass with `depth` more inside of it."""
    with torch.enable_grad():
        value = torch.ones(2, requires_grad=True)
        Nested.apply(value, program, depth, threading.get_ident()).sum().backward()


def train(program: Program) -> None:
    """One thread's work."""
    program.cuda.bind_thread()
    for depth in (0, 3, DEPTH):
        run(program, depth)


def main() -> None:
    """Run in two threads, then tell."""
    options = app_common.parser(__doc__ or "").parse_args()
    program = Program(FakeCuda())
    run(program, 0)
    app_common.hold(options)
    program.truth.clear()
    threads = [threading.Thread(target=train, args=(program,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app_common.emit(
        {
            "pid": os.getpid(),
            "torch": torch.__version__,
            "passes": THREADS * (1 + 4 + DEPTH + 1),
            "handed_over": program.handed_over,
            "kernels": program.truth,
            "own": program.own,
        }
    )


if __name__ == "__main__":
    app_common.run(main)
