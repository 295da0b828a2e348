# SPDX-License-Identifier: Apache-2.0
"""Target program: a child process is killed while its threads wait for the GPU."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

LONG_NS = 3_600_000_000_000
CLOCK_NANOSLEEP = {"x86_64": "230", "aarch64": "115"}[os.uname().machine]
LIMIT_S = 300
THREADS = 8


def are_waiting(pid: int) -> bool:
    """Whether the fake driver has put all threads to sleep: nothing else in there does."""
    calls = [
        task.read_text().split(" ", 1)[0] for task in Path(f"/proc/{pid}/task").glob("*/syscall")
    ]
    return calls == [CLOCK_NANOSLEEP] * THREADS


def wait(cuda: FakeCuda) -> None:
    """Wait for what does not end."""
    cuda.bind_thread()
    cuda.synchronize()


def child() -> None:
    """Launch a kernel that does not end, and wait for it in every thread."""
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, LONG_NS)
    cuda.launch(app_common.KERNEL)
    for _ in range(THREADS - 1):
        threading.Thread(target=wait, args=(cuda,), daemon=True).start()
    wait(cuda)


def main() -> None:
    """Kill the child inside of its wait, then make a call of our own."""
    app_common.parser(__doc__ or "").parse_args()
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(1)
    deadline = time.monotonic() + LIMIT_S
    while not are_waiting(pid):
        if time.monotonic() > deadline:
            sys.exit("killed_wait.py: the child does not wait")
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    cuda = FakeCuda()
    cuda.launch(app_common.KERNEL)
    truth = {"pid": os.getpid(), "child": pid, "signal": os.WTERMSIG(status), "threads": THREADS}
    app_common.emit(truth)


if __name__ == "__main__":
    app_common.run(main)
