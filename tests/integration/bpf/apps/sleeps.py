# SPDX-License-Identifier: Apache-2.0
"""Target program: one thread sleeps long, one sleeps often and briefly; both measure each sleep."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

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


def run(function: object, truth: dict[str, object]) -> None:
    """Run one of the two and note what it did."""
    durations_ns: list[int] = []
    line = function(durations_ns)  # type: ignore[operator]
    truth[function.__name__] = {  # type: ignore[attr-defined]
        "tid": threading.get_native_id(),
        "line": line,
        "durations_ns": durations_ns,
    }


def main() -> None:
    """Print the truth of both threads."""
    truth: dict[str, object] = {"pid": os.getpid(), "long_ns": int(LONG_S * 1e9)}
    threads = [
        threading.Thread(target=run, args=(function, truth))
        for function in (sleep_long, sleep_briefly)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(truth), flush=True)


if __name__ == "__main__":
    main()
