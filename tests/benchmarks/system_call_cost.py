"""What tracepoints of system calls cost: while they are on, each call of every process takes the kernel's slow path."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.perf_events import open_tracepoint
from otel_gpuflame.capture.bpf.tracefs import tracepoint_id

_CALLS: Final = 20_000
_BATCHES: Final = 5


def added_ns(attach: Callable[[], None], detach: Callable[[], None], rounds: int) -> list[float]:
    """Nanoseconds that a system call takes longer with what `attach` attaches, a figure a round."""
    found = []
    for _ in range(rounds):
        detach()
        without_ns = _call_ns()
        attach()
        found.append(_call_ns() - without_ns)
    return found


def calls_per_s(pid: int, seconds: float) -> float:
    """System calls of all threads that a process has now. Raises LibbpfError where the kernel does not count them."""
    number = tracepoint_id("raw_syscalls", "sys_enter")
    if number is None:
        raise LibbpfError(0, "find raw_syscalls:sys_enter")
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    counters = [open_tracepoint(number, thread=thread) for thread in threads]
    try:
        time.sleep(seconds)
        return sum(_count(counter) for counter in counters) / seconds
    finally:
        for counter in counters:
            os.close(counter)


def _count(counter: int) -> int:
    return ctypes.c_uint64.from_buffer_copy(os.read(counter, 8)).value


def _call_ns() -> float:
    """The fastest of some batches: what else the machine does makes them longer only."""
    took_ns = []
    for _ in range(_BATCHES):
        started_ns = time.perf_counter_ns()
        for _ in range(_CALLS):
            os.getppid()
        took_ns.append(time.perf_counter_ns() - started_ns)
    return min(took_ns) / _CALLS
