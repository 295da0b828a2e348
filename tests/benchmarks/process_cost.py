"""What a process and its descendants take: CPU time and memory, from /proc."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """`pss_bytes`: resident memory, pages that others share counted in part."""

    cpu_s: float
    pss_bytes: int


def family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found = [pid]
    for children in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += family(int(child))
    return found


def cost_of(pid: int) -> ProcessCost:
    """Of one process; nothing where it has ended."""
    try:
        stat = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        rollup = (PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return ProcessCost(0.0, 0)
    ticks = int(stat[11]) + int(stat[12])
    return ProcessCost(ticks * _TICK_S, int(rollup.partition("Pss:")[2].split()[0]) * 1024)
