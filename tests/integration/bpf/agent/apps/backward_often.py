# SPDX-License-Identifier: Apache-2.0
"""Target program: backward passes of two functions, one inside of another, until a line comes on stdin.

Every kernel of `pass_NAME` is called `kernel_NAME`, and launched by a thread of the engine. Tasks follow each other in
the same memory.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading
import time

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.torch_engine import FakeEngine, Node

THREADS = 2
NODES = 3
PAUSE_S = 0.005


class Passes:
    """Each runs once when called."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._engine = FakeEngine(
            cuda.context, devices=2, max_depth=3, new_thread=keep_thread_state
        )
        self._functions = {
            name: cuda.function(f"kernel_{name}") for name in ("one", "two", "inner")
        }
        self.count = 0

    def pass_one(self, device: int) -> None:
        """Some nodes."""
        self._engine.backward(self._nodes("one", device), self._functions["one"], lambda _f: None)

    def pass_two(self, device: int) -> None:
        """As many, of which the last but one begins a pass itself."""
        nodes = self._nodes("two", device)
        function = self._functions["two"]
        nodes[1] = Node(function=function, device=device, hook=lambda: self.pass_inner(device))
        self._engine.backward(nodes, function, lambda _f: None)

    def pass_inner(self, device: int) -> None:
        """In the thread of a device."""
        function = self._functions["inner"]
        self._engine.backward(self._nodes("inner", device), function, lambda _f: None)

    def _nodes(self, name: str, device: int) -> list[Node]:
        return [Node(function=self._functions[name], device=device) for _ in range(NODES)]


def train(passes: Passes, cuda: FakeCuda, device: int, until: threading.Event) -> None:
    """One kind after the other."""
    cuda.bind_thread()
    while not until.is_set():
        passes.pass_one(device)
        passes.pass_two(device)
        time.sleep(PAUSE_S)
        passes.count += 3


def keep_thread_state() -> None:
    """A thread of the engine has a Python thread state as long as it lives, as PyTorch's have."""
    ctypes.pythonapi.PyGILState_Ensure()


def main() -> None:
    """Train, and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    passes = Passes(cuda)
    app_common.hold(options)
    until = threading.Event()
    threads = [
        threading.Thread(target=train, args=(passes, cuda, device, until))
        for device in range(THREADS)
    ]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    select.select([sys.stdin], [], [])
    sys.stdin.readline()
    until.set()
    for thread in threads:
        thread.join()
    per_s = passes.count / (time.monotonic() - began_s)
    app_common.emit({"pid": os.getpid(), "passes_per_s": per_s})


if __name__ == "__main__":
    app_common.run(main)
