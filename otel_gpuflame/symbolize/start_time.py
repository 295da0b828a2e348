"""Whether a pid still belongs to the process that was meant: pids are reused."""

from __future__ import annotations

import os
import time
from pathlib import Path

from otel_gpuflame.events.frames import ProcessKey

_START_TIME_FIELD = 22
_NS = 1_000_000_000


def is_same_process(key: ProcessKey, proc: Path) -> bool:
    """Compares the start in /proc/PID/stat with `key.start_ns`; an unknown start (0) is taken on
    trust.

    The file counts CLOCK_BOOTTIME in ticks, the key CLOCK_MONOTONIC: they differ by the
    time that the host had been suspended.
    """
    started = _start_boottime_ns(key.tgid, proc)
    if started is None:
        return False
    if key.start_ns == 0:
        return True
    tick_ns = _NS // os.sysconf("SC_CLK_TCK")
    return -2 * tick_ns <= started - key.start_ns <= _suspended_ns() + 2 * tick_ns


def start_monotonic_ns(pid: int, proc: Path = Path("/proc")) -> int | None:
    """CLOCK_MONOTONIC time at which a process started, to the tick (10 ms); None if there is no such process.

    Earlier than it was by what the host has been suspended for since then.
    """
    started = _start_boottime_ns(pid, proc)
    return None if started is None else max(started - _suspended_ns(), 0)


def _suspended_ns() -> int:
    return max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns(), 0)


def _start_boottime_ns(pid: int, proc: Path) -> int | None:
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name in field 2 may hold blanks and parentheses.
    fields = text.rpartition(b")")[2].split()
    try:
        ticks = int(fields[_START_TIME_FIELD - 3])
    except (IndexError, ValueError):
        return None
    return ticks * (_NS // os.sysconf("SC_CLK_TCK"))
