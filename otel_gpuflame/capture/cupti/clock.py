"""The clock of a process: CLOCK_MONOTONIC differs between time namespaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_NS: Final = 1_000_000_000


def clock_offset_ns(pid: int, proc: Path = Path("/proc")) -> int:
    """How far the CLOCK_MONOTONIC of a process is ahead of ours; 0 where the kernel has no time namespaces."""
    try:
        own = os.readlink(proc / "self" / "ns" / "time")
        theirs = os.readlink(proc / str(pid) / "ns" / "time")
        if own == theirs:
            return 0
        return _offset_ns(proc / str(pid)) - _offset_ns(proc / "self")
    except (OSError, ValueError):
        return 0


def _offset_ns(process: Path) -> int:
    # The file tells of the namespace that children will be in, which is the process's own but right after unshare.
    for line in (process / "timens_offsets").read_text().splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock == "monotonic":
            return int(seconds) * _NS + int(nanoseconds)
    return 0
