"""The library's thread in a target program, as /proc shows it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from tests.integration.inject.region import wait_for


def worker_of(pid: int) -> Path:
    """The library's thread in a process, once it has given itself its name."""

    def named() -> list[Path]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [task for task in tasks if (task / "comm").read_text() == "otel_gpuflame\n"]

    wait_for(lambda: len(named()) == 1, "the worker")
    return named()[0]


def sleeps_without_limit(task: Path) -> bool:
    """Whether a thread waits on a futex until it is woken: the fourth argument, a time, is NULL."""
    number = {"x86_64": 202, "aarch64": 98}[platform.machine()]
    return re.match(rf"{number}( 0x\w+){{3}} 0x0 ", (task / "syscall").read_text()) is not None


def switches(task: Path) -> str:
    """How often a thread has given up the processor."""
    lines = (task / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))


def is_asleep(task: Path) -> bool:
    """Whether a thread sleeps."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"
