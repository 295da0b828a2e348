"""How long a window waits for the encoding process on a machine without a free processor, by its niceness.

Usage: python -m tests.benchmarks.encode_beside [--rounds 3] [--stacks 500] [--limit 60]

An agent is a session of its own: a process that never rests stands for capture and aggregation, beside it the encoding
process. Targets are two busy loops a processor, each in a session of its own, or all in the agent's (`together`): where
sessions are scheduled as groups (autogroup, containers, systemd units), niceness counts within the group only. Printed
for each niceness: seconds until a window is encoded, lowest and highest, and turns a second of one target's loop.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import TimeoutError as LateError
from dataclasses import replace
from typing import Final

from otel_gpuflame.pipeline import encoding
from otel_gpuflame.profile.model import Bundle
from tests.benchmarks import workload

NICENESSES: Final = (19, 10, 5, 0)
_BUSY: Final = """
import os, time
parent, turns, begin_s = os.getppid(), 0, time.monotonic()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
    turns += 1
    os.pwrite(1, f"{turns / (time.monotonic() - begin_s):12.2f}".encode(), 0)
"""


@contextlib.contextmanager
def busy(count: int, *, own_session: bool) -> Iterator[list[int]]:
    """So many loops; descriptors of files with their turns a second."""
    files = [os.memfd_create("turns") for _ in range(count)]
    command = [sys.executable, "-c", _BUSY]
    loops = [
        subprocess.Popen(command, stdout=file, start_new_session=own_session) for file in files
    ]
    try:
        yield files
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        for file in files:
            os.close(file)


def cut(window: Bundle, stacks: int) -> Bundle:
    """The window with its first stacks only."""
    return replace(
        window,
        stacks=window.stacks[:stacks],
        profiles=tuple(
            replace(
                p,
                **{
                    name: getattr(p, name)[:stacks]
                    for name in ("stack", "link", "attributes", "value")
                },
            )
            for p in window.profiles
        ),
    )


def seconds(window: Bundle, rounds: int, limit_s: float) -> list[float]:
    """From handing a window over until it is encoded; `limit_s` where it took longer, and then no more rounds."""
    process = encoding.EncodingProcess()
    process([cut(window, 1)], dropped=Counter())
    assert process._pool is not None
    taken: list[float] = []
    for _ in range(rounds):
        begin_s = time.monotonic()
        try:
            process._pool.submit(encoding._answer, (window,), has_findings=False).result(limit_s)
        except LateError:
            taken.append(limit_s)
            break
        taken.append(time.monotonic() - begin_s)
    process.close()
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    return taken


def measure(niceness: int, window: Bundle, rounds: int, limit_s: float) -> list[float]:
    """In this process, which is the agent's session: capture that never rests, and the encoding process."""
    encoding._NICENESS = niceness
    with busy(1, own_session=False):
        return seconds(window, rounds, limit_s)


def main() -> None:
    """Measure and print; with --niceness, be the agent."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stacks", type=int, default=500)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one window")
    parser.add_argument("--niceness", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.niceness is not None:
        window = cut(workload.window(), options.stacks)
        print(json.dumps(measure(options.niceness, window, options.rounds, options.limit)))
        return
    for together, niceness in itertools.product((False, True), NICENESSES):
        command = [sys.executable, "-m", "tests.benchmarks.encode_beside", *sys.argv[1:]]
        command += ["--niceness", str(niceness)]
        with busy(2 * (os.cpu_count() or 1), own_session=not together) as turns:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                start_new_session=not together,
            )
            rate = float(os.pread(turns[0], 64, 0))
        taken = json.loads(done.stdout)
        where = "one session" if together else "sessions of their own"
        print(
            f"{where:22} nice {niceness:2}: {min(taken):6.1f} to {max(taken):6.1f} s a window, "
            f"a target's loop {rate:6.1f} turns/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
