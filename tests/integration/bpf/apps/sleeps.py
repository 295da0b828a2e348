# SPDX-License-Identifier: Apache-2.0
"""Target program: one thread sleeps long, one sleeps often and briefly; both measure each sleep."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.fakes import steps

LONG_S, LONG_COUNT = 0.05, 10
BRIEF_S, BRIEF_COUNT = 0.0002, 300


def sleep_long(durations_ns: list[int]) -> int:
    """Sleep; the line that sleeps."""
    for _ in range(LONG_COUNT):
        begin_ns = time.monotonic_ns()
        time.sleep(LONG_S)
        durations_ns.append(time.monotonic_ns() - begin_ns)
    return sys._getframe().f_code.co_firstlineno + 4


def sleep_briefly(durations_ns: list[int]) -> int:
    """Sleep; the line that sleeps."""
    for _ in range(BRIEF_COUNT):
        begin_ns = time.monotonic_ns()
        time.sleep(BRIEF_S)
        durations_ns.append(time.monotonic_ns() - begin_ns)
    return sys._getframe().f_code.co_firstlineno + 4


def switches() -> int:
    """How often this thread has left the CPU, of its own will or not."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw


def run(
    function: Callable[[list[int]], int], truth: dict[str, Any], ready: threading.Barrier
) -> None:
    """Run one of the two and note what it did."""
    ready.wait()
    ready.wait()
    durations_ns: list[int] = []
    switches_before, cpu_before_ns = switches(), time.thread_time_ns()
    begin_ns = time.monotonic_ns()
    line = function(durations_ns)
    truth[function.__name__] = {
        "tid": threading.get_native_id(),
        "begin_ns": begin_ns,
        "end_ns": time.monotonic_ns(),
        "line": line,
        "durations_ns": durations_ns,
        "cpu_ns": time.thread_time_ns() - cpu_before_ns,
        "switches": switches() - switches_before,
    }


def main() -> None:
    """Print the truth of both threads, which have run for a while when they begin: new ones may have no frames yet."""
    truth: dict[str, Any] = {"pid": os.getpid(), "long_ns": int(LONG_S * 1e9)}
    ready = threading.Barrier(3)
    threads = [
        threading.Thread(target=run, args=(function, truth, ready))
        for function in (sleep_long, sleep_briefly)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    if "--hold" in sys.argv:
        steps.hold()
    ready.wait()
    for thread in threads:
        thread.join()
    steps.tell(truth)


if __name__ == "__main__":
    main()
