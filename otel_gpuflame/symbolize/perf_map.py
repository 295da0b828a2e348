"""Names that run-time compilers publish in /tmp/perf-PID.map: lines of `START SIZE NAME`,
hexadecimal.
"""

from __future__ import annotations

import io
import os
import time
from array import array
from pathlib import Path

import numpy as np

from otel_gpuflame.symbolize.elf_files import open_regular

MAX_PERF_MAP_BYTES = 32 << 20
MAX_ENTRIES = 1 << 18
"""The newest, which stand at the end: compilers add lines and take none back. They take 6 MB, and their names."""
MAX_NAME_BYTES = 1024
REREAD_INTERVAL_S = 1.0
REREAD_SHARE = 10
"""A map is not read again for so many times what reading it took: a tenth of a CPU at most, whatever it holds."""
_MAX_STATUS_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16
_ADDRESSES = 1 << 64


class PerfMap:
    """Functions by run-time address; of ranges that overlap, the highest start wins, of equal starts the last line."""

    def __init__(self, data: bytes) -> None:
        starts, ends, name_ends, names = array("Q"), array("Q"), array("L", [0]), bytearray()
        for line in io.BytesIO(_newest(data)):
            parts = line.rstrip(b"\r\n").split(None, 2)
            if len(parts) != 3:
                continue
            try:
                start, size = int(parts[0], 16), int(parts[1], 16)
            except ValueError:
                continue
            if 0 <= start < _ADDRESSES and 0 <= size < _ADDRESSES:
                starts.append(start)
                ends.append(min(start + size, _ADDRESSES - 1))
                names += parts[2][:MAX_NAME_BYTES]
                name_ends.append(len(names))
        order = np.argsort(np.frombuffer(starts, np.uint64), kind="stable").astype(np.uint32)
        self._starts = np.frombuffer(starts, np.uint64)[order]
        self._ends = np.frombuffer(ends, np.uint64)[order]
        self._lines = order
        self._name_ends = np.array(name_ends, np.uint32)
        self._names = bytes(names)

    def name_at(self, address: int) -> str | None:
        """Name of the compiled function that holds `address`."""
        if not 0 <= address < _ADDRESSES:
            return None
        index = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        if index < 0 or address >= int(self._ends[index]):
            return None
        line = int(self._lines[index])
        name = self._names[int(self._name_ends[line]) : int(self._name_ends[line + 1])]
        return name.decode("utf-8", "replace")


class LivePerfMap:
    """The map of a live process, to which its compilers go on adding."""

    def __init__(self, pid: int, proc: Path) -> None:
        self._pid = pid
        self._proc = proc
        self._map = PerfMap(b"")
        self._status: tuple[int, ...] = ()
        self._due_s = -1.0

    def name_at(self, address: int) -> str | None:
        """As `PerfMap.name_at`. For an unknown address the file is read again if it has changed, once a second, or
        less often where it takes long.
        """
        name = self._map.name_at(address)
        begin_s = time.monotonic()
        if name is None and begin_s >= self._due_s:
            self._read()
            end_s = time.monotonic()
            self._due_s = end_s + max(REREAD_INTERVAL_S, REREAD_SHARE * (end_s - begin_s))
            name = self._map.name_at(address)
        return name

    def _read(self) -> None:
        fd = _open(self._pid, self._proc)
        if fd is None:
            self._map, self._status = PerfMap(b""), ()
            return
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            status = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if status != self._status:
                self._map, self._status = PerfMap(_tail(file)), status


def read_perf_map(pid: int, proc: Path) -> PerfMap:
    """The map of a process under the pid that it knows itself by; empty where there is none."""
    fd = _open(pid, proc)
    if fd is None:
        return PerfMap(b"")
    with os.fdopen(fd, "rb") as file:
        return PerfMap(_tail(file))


def _open(pid: int, proc: Path) -> int | None:
    return open_regular(proc / str(pid) / "root" / "tmp" / f"perf-{_innermost_pid(pid, proc)}.map")


def _tail(file: io.BufferedReader) -> bytes:
    """The last `MAX_PERF_MAP_BYTES`, from the first line that begins in them."""
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes <= MAX_PERF_MAP_BYTES:
        return file.read(MAX_PERF_MAP_BYTES)
    file.seek(size_bytes - MAX_PERF_MAP_BYTES)
    file.readline(MAX_PERF_MAP_BYTES)
    return file.read(MAX_PERF_MAP_BYTES)


def _newest(data: bytes) -> bytes:
    """The last lines, `MAX_ENTRIES` or somewhat fewer: an empty line is one too, and takes as long."""
    begin, lines = len(data), 0
    while begin > 0:
        chunk = max(begin - _CHUNK_BYTES, 0)
        lines += data.count(b"\n", chunk, begin)
        if lines > MAX_ENTRIES:
            return data[data.find(b"\n", begin) + 1 :]
        begin = chunk
    return data


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
