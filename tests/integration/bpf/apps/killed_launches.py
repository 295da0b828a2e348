# SPDX-License-Identifier: Apache-2.0
"""Target program: children whose threads launch without a pause, each killed in the middle of that."""

from __future__ import annotations

import os
import signal
import threading

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

CHILDREN = 12
THREADS = 3
DEPTH = 60


def launch_below(cuda: FakeCuda, depth: int) -> None:
    """A deep stack takes long to walk, so that the end often comes in the middle."""
    if depth:
        launch_below(cuda, depth - 1)
    else:
        cuda.launch(app_common.KERNEL)


def launch_for_ever(cuda: FakeCuda, ready: int) -> None:
    """From many depths: there is nearly always a stack that is new."""
    cuda.bind_thread()
    for number in range(1 << 30):
        launch_below(cuda, number % DEPTH)
        if number == DEPTH // 3:
            os.write(ready, b".")


def child(ready: int) -> None:
    """Never comes back."""
    cuda = FakeCuda()
    for _ in range(THREADS):
        threading.Thread(target=launch_for_ever, args=(cuda, ready)).start()


def main() -> None:
    """Kill all children, then launch ourselves."""
    options = app_common.parser(__doc__ or "").parse_args()
    app_common.hold(options)
    for _ in range(CHILDREN):
        said, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(says)
            return
        os.close(says)
        assert os.read(said, 1) == b"."
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        os.close(said)
    cuda = FakeCuda()
    launch_below(cuda, 3)
    app_common.emit({"pid": os.getpid(), "children": CHILDREN})


if __name__ == "__main__":
    app_common.run(main)
