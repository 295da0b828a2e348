"""Target programs whose cost is known, one a process: what a device does is the same from the first turn to the last.

Usage: python -m tests.integration.gpu.truth_programs NAME

Prints one line of JSON when the work is done: `expected_ns`, what the program itself knows of the times that
hardware_truths.py then looks for, by truth, and `pid`. Lines with a comment `# truth: NAME` are those under which that
time has to be. Programs have the name of their first truth.

What is made or loaded is made before `PAUSE_S`. That pause is idle time too where a device was used before: it comes
once, and is no finding.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Final

import torch

COPY_BYTES: Final = 64 << 20
SECONDS: Final = 1.2
"""How long loops go on whose length depends on the machine."""
LAUNCHES: Final = 5_000
PAUSE_S: Final = 0.5
"""Before the first kernel and after the last: until the recorder knows the program, and has all records of it."""
Work = Callable[["Clock"], dict[str, int]]
"""Nanoseconds by truth."""


class Clock:
    """How many cycles of the device a millisecond has."""

    def __init__(self) -> None:
        self._cycles_per_ms = 1_000_000.0
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(int(10 * self._cycles_per_ms))
            end.record()
            end.synchronize()
            self._cycles_per_ms *= 10 / begin.elapsed_time(end)

    def cycles(self, milliseconds: float) -> int:
        """For a kernel of that length."""
        return int(milliseconds * self._cycles_per_ms)


def clean() -> Work:
    """Large kernels one behind the other, and one wait at the end: what they took, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def work(clock: Clock) -> dict[str, int]:
        cycles = clock.cycles(4)
        begin.record()
        for _ in range(200):
            torch.cuda._sleep(cycles)  # truth: clean
        end.record()
        torch.cuda.synchronize()
        return {"clean": int(begin.elapsed_time(end) * 1e6)}

    return work


def item() -> Work:
    """A result is read in every step: the time in that line."""
    total = torch.zeros(1, device="cuda")
    total.item()

    def work(clock: Clock) -> dict[str, int]:
        cycles, waited_ns = clock.cycles(4), 0
        for _ in range(250):
            torch.cuda._sleep(cycles)
            begin_ns = time.monotonic_ns()
            total.item()  # truth: item
            waited_ns += time.monotonic_ns() - begin_ns
        return {"item": waited_ns}

    return work


def unpinned() -> Work:
    """Copies from memory that is not pinned, asked to be asynchronous: the time in that line."""
    host = torch.ones(COPY_BYTES // 4)
    host.to("cuda", non_blocking=True)

    def work(_clock: Clock) -> dict[str, int]:
        waited_ns, until_ns = 0, time.monotonic_ns() + int(SECONDS * 1e9)
        while (begin_ns := time.monotonic_ns()) < until_ns:
            host.to("cuda", non_blocking=True)  # truth: unpinned
            waited_ns += time.monotonic_ns() - begin_ns
        torch.cuda.synchronize()
        return {"unpinned": waited_ns}

    return work


def sleeping() -> Work:
    """5 ms asleep between steps: the device is idle meanwhile."""

    def work(clock: Clock) -> dict[str, int]:
        cycles, slept_ns = clock.cycles(2), 0
        for _ in range(150):
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
            begin_ns = time.monotonic_ns()
            time.sleep(0.005)  # truth: sleeping
            slept_ns += time.monotonic_ns() - begin_ns
        return {"sleeping": slept_ns}

    return work


def python_loop() -> Work:
    """5 ms of Python between steps: the device is idle meanwhile."""

    def work(clock: Clock) -> dict[str, int]:
        cycles, worked_ns = clock.cycles(2), 0
        for _ in range(250):
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
            worked_ns += count_for(5_000_000)
        return {"python_loop": worked_ns}

    return work


def count_for(duration_ns: int) -> int:
    """Count for so long; how long it was."""
    begin_ns, count = time.monotonic_ns(), 0
    while (now_ns := time.monotonic_ns()) < begin_ns + duration_ns:  # truth: python_loop
        count += 1  # truth: python_loop
    return now_ns - begin_ns


def back_pressure() -> Work:
    """More launches than the driver's queue takes: the time in that line, but for what launches take without."""

    def work(clock: Clock) -> dict[str, int]:
        cycles, durations_ns = clock.cycles(1), []
        for _ in range(LAUNCHES):
            begin_ns = time.monotonic_ns()
            torch.cuda._sleep(cycles)  # truth: back_pressure
            durations_ns.append(time.monotonic_ns() - begin_ns)
        torch.cuda.synchronize()
        usual_ns = sorted(durations_ns[:500])[250]
        return {"back_pressure": sum(durations_ns) - usual_ns * LAUNCHES}

    return work


def two_streams() -> Work:
    """Kernels of two streams at the same time: what they took, by events of each stream."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in streams]

    def work(clock: Clock) -> dict[str, int]:
        cycles = clock.cycles(4)
        for turn in range(100):
            for stream, (begin, end) in zip(streams, events, strict=True):
                with torch.cuda.stream(stream):
                    if turn == 0:
                        begin.record()
                    torch.cuda._sleep(cycles)  # truth: two_streams
                    if turn == 99:
                        end.record()
        torch.cuda.synchronize()
        return {"two_streams": int(sum(begin.elapsed_time(end) for begin, end in events) * 1e6)}

    return work


def copy_awaited_by_event() -> Work:
    """Pinned copies on a second stream, each awaited by a kernel through an event, and each kernel by the next copy.

    By events: kernels were queued for as long as copies took, and copies for as long as kernels took but the last.
    """
    copying, main = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.ones(COPY_BYTES // 4).pin_memory()
    target = torch.empty(COPY_BYTES // 4, device="cuda")
    timed = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(100)]

    def work(clock: Clock) -> dict[str, int]:
        cycles = clock.cycles(4)
        for begin, copied, awaited, done in timed:
            with torch.cuda.stream(copying):
                begin.record()
                target.copy_(host, non_blocking=True)  # truth: kernel_awaited_by_copy
                copied.record()
            main.wait_event(copied)
            with torch.cuda.stream(main):
                awaited.record()
                torch.cuda._sleep(cycles)  # truth: copy_awaited_by_event
                done.record()
            copying.wait_event(done)
        torch.cuda.synchronize()
        copies_ms = sum(begin.elapsed_time(copied) for begin, copied, _, _ in timed)
        kernels_ms = sum(awaited.elapsed_time(done) for _, _, awaited, done in timed[:-1])
        return {
            "copy_awaited_by_event": int(copies_ms * 1e6),
            "kernel_awaited_by_copy": int(kernels_ms * 1e6),
        }

    return work


PROGRAMS: Final[dict[str, Callable[[], Work]]] = {
    each.__name__: each
    for each in (
        clean,
        item,
        unpinned,
        sleeping,
        python_loop,
        back_pressure,
        two_streams,
        copy_awaited_by_event,
    )
}


def main() -> None:
    """One of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PROGRAMS))
    name = parser.parse_args().name
    work = PROGRAMS[name]()
    torch.cuda.synchronize()
    time.sleep(PAUSE_S)
    expected_ns = work(Clock())
    print(json.dumps({"program": name, "pid": os.getpid(), "expected_ns": expected_ns}), flush=True)
    time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
