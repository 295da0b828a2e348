"""Names that run-time compilers publish in /tmp/perf-PID.map: lines of `START SIZE NAME`,
hexadecimal.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from pathlib import Path

from otel_gpuflame.symbolize.elf_files import open_regular

MAX_PERF_MAP_BYTES = 32 << 20
MAX_NAME_CHARACTERS = 1024
REREAD_INTERVAL_S = 1.0
_MAX_STATUS_BYTES = 1 << 16


class PerfMap:
    """Functions by run-time address; of ranges that overlap, the highest start wins."""

    def __init__(self, text: str) -> None:
        entries: dict[int, tuple[int, str]] = {}
        for line in text.splitlines():
            parts = line.split(None, 2)
            if len(parts) == 3:
                try:
                    entries[int(parts[0], 16)] = (int(parts[1], 16), parts[2][:MAX_NAME_CHARACTERS])
                except ValueError:
                    continue
        self._starts = sorted(entries)
        self._entries = entries

    def name_at(self, address: int) -> str | None:
        """Name of the compiled function that holds `address`."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        size, name = self._entries[start]
        return name if address < start + size else None


class LivePerfMap:
    """The map of a live process, to which its compilers go on adding."""

    def __init__(self, pid: int, proc: Path) -> None:
        self._pid = pid
        self._proc = proc
        self._map = PerfMap("")
        self._read_s = -REREAD_INTERVAL_S

    def name_at(self, address: int) -> str | None:
        """As `PerfMap.name_at`; the file is read again for an unknown address, once a second."""
        name = self._map.name_at(address)
        if name is None and time.monotonic() - self._read_s >= REREAD_INTERVAL_S:
            self._map = read_perf_map(self._pid, self._proc)
            self._read_s = time.monotonic()
            name = self._map.name_at(address)
        return name


def read_perf_map(pid: int, proc: Path) -> PerfMap:
    """The map of a process under the pid that it knows itself by; empty where there is none."""
    path = proc / str(pid) / "root" / "tmp" / f"perf-{_innermost_pid(pid, proc)}.map"
    fd = open_regular(path)
    if fd is None:
        return PerfMap("")
    with os.fdopen(fd, "rb") as file:
        return PerfMap(file.read(MAX_PERF_MAP_BYTES).decode("utf-8", "replace"))


def _innermost_pid(pid: int, proc: Path) -> int:
    try:
        with (proc / str(pid) / "status").open("rb") as file:
            text = file.read(_MAX_STATUS_BYTES)
    except OSError:
        return pid
    for line in text.splitlines():
        if line.startswith(b"NSpid:"):
            pids = line.split()[1:]
            return int(pids[-1]) if pids else pid
    return pid
