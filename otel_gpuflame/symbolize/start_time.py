"""Whether a pid still belongs to the process that was meant: pids are reused."""

from __future__ import annotations

import os
import time
from pathlib import Path

from otel_gpuflame.events.frames import ProcessKey

_START_TIME_FIELD = 22
_THREADS_FIELD = 20
_ENDED = (b"Z", b"X")
_NS = 1_000_000_000


def is_same_process(key: ProcessKey, proc: Path) -> bool:
    """Compares the start in /proc/PID/stat with `key.start_ns`; an unknown start (0) is taken on
    trust.

    The file counts CLOCK_BOOTTIME in ticks, the key CLOCK_MONOTONIC: they differ by the
    time that the host had been suspended.
    """
    started = _start_boottime_ns(_stat(key.tgid, proc))
    return started is not None and (key.start_ns == 0 or _agree(started, key.start_ns))


def is_running(key: ProcessKey, proc: Path) -> bool:
    """Whether a process is there and has a thread that has not ended: its first thread may have, before others."""
    stat = _stat(key.tgid, proc)
    started = _start_boottime_ns(stat)
    if started is None or (key.start_ns != 0 and not _agree(started, key.start_ns)):
        return False
    return stat[0] not in _ENDED or stat[_THREADS_FIELD - 3] not in (b"0", b"1")


def may_be_same_start(first_ns: int, second_ns: int) -> bool:
    """Whether two CLOCK_MONOTONIC times may be the start of one process.

    Each is the kernel's, or from `start_monotonic_ns`, or unknown (0).
    """
    low, high = sorted((first_ns, second_ns))
    return low == 0 or high - low <= _suspended_ns() + 2 * _tick_ns()


def start_monotonic_ns(pid: int, proc: Path = Path("/proc")) -> int | None:
    """CLOCK_MONOTONIC time at which a process started, to the tick (10 ms); None if there is no such process.

    Earlier than it was by what the host has been suspended for since then.
    """
    started = _start_boottime_ns(_stat(pid, proc))
    return None if started is None else max(started - _suspended_ns(), 0)


def _agree(boottime_ns: int, monotonic_ns: int) -> bool:
    return -2 * _tick_ns() <= boottime_ns - monotonic_ns <= _suspended_ns() + 2 * _tick_ns()


def _tick_ns() -> int:
    return _NS // os.sysconf("SC_CLK_TCK")


def _suspended_ns() -> int:
    return max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns(), 0)


def _stat(pid: int, proc: Path) -> list[bytes]:
    """Fields from the third on, the state; none where there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return []
    # The name in field 2 may hold blanks and parentheses.
    return text.rpartition(b")")[2].split()


def _start_boottime_ns(stat: list[bytes]) -> int | None:
    try:
        return int(stat[_START_TIME_FIELD - 3]) * _tick_ns()
    except (IndexError, ValueError):
        return None
