"""A double of the injected library: a process that has a region, into which the test writes.

The process makes the memfd and maps it, as the library does. The test maps it too, and plays the part of the library's
worker: it can write what an honest library writes, and everything else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire_gpu
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryState
from otel_gpuflame.symbolize.start_time import start_monotonic_ns

PAGE: Final = 4096
SLOTS: Final = 64
NAMES_BYTES: Final = 4096
MAGIC: Final = int.from_bytes(b"gOFGPU1\0", "little")
LIMIT_S: Final = 300

_TARGET: Final = """
import fcntl, mmap, os, sys
name, size, is_sealed, is_mapped, forks, regions = sys.argv[1], *map(int, sys.argv[2:])
fds, memories = [], []
for _ in range(regions):
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fds.append(fd)
    os.ftruncate(fd, size)
    if is_sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    if is_mapped:
        memories.append(mmap.mmap(fd, size))
        memories[-1].madvise(mmap.MADV_DONTFORK)
child = os.fork() if forks else 0
print(os.getpid(), child, *fds, flush=True) if child or not forks else None
sys.stdin.read()
"""


class Writer:
    """The region of a living process. Numbers of the layout are attributes, so that a test can write others."""

    def __init__(
        self, process: subprocess.Popen[str], size_bytes: int, place: tuple[int, int, int]
    ) -> None:
        self.process = process
        self.pid, self.child, self.fd = place
        self.others: list[Writer] = []
        """Of further regions of the same process."""
        self.path = f"/proc/{self.pid}/fd/{self.fd}"
        own = os.open(self.path, os.O_RDWR)
        self.memory = mmap.mmap(own, size_bytes)
        os.close(own)
        self.library: NDArray[Any] = np.frombuffer(self.memory, wire_gpu.LIBRARY, 1)
        self.control: NDArray[Any] = np.frombuffer(self.memory, wire_gpu.CONTROL, 1, PAGE)
        self._head = 0
        # As BPF has it: to the nanosecond, where /proc counts in ticks.
        self.key = ProcessKey(self.pid, (start_monotonic_ns(self.pid) or 0) + 1234)

    def make(self, slots: int = SLOTS, names_bytes: int = NAMES_BYTES) -> None:
        """What the library writes when it is loaded; the magic number last."""
        library = self.library
        library["abi"], library["record_bytes"] = wire_gpu.Limit.ABI, 96
        library["region_bytes"] = len(self.memory)
        library["records_offset"] = 2 * PAGE
        library["names_offset"] = 2 * PAGE + slots * 96
        library["record_slots"], library["names_bytes"] = slots, names_bytes
        library["state"] = LibraryState.DORMANT
        library["magic"] = MAGIC

    def write(self, records: NDArray[Any]) -> None:
        """Append records, as the library does: they count when the head has passed them."""
        slots, offset = int(self.library["record_slots"][0]), int(self.library["records_offset"][0])
        ring = np.frombuffer(self.memory, wire_gpu.RECORD, slots, offset)
        assert self._head + len(records) - int(self.control["records_tail"][0]) <= slots
        places = (self._head + np.arange(len(records))) % slots
        ring[places] = records
        self._head += len(records)
        self.library["records_head"] = self._head

    def add_name(self, name: bytes) -> int:
        """Append a name; what a record's `name` is then."""
        head = int(self.library["names_head"][0])
        start = int(self.library["names_offset"][0]) + head
        entry = len(name).to_bytes(4, "little") + name
        self.memory[start : start + len(entry)] = entry
        self.library["names_head"] = head + -(-len(entry) // 4) * 4
        return 1 + head

    def add_device(self, uuid: bytes, model: bytes, multiprocessors: int = 132) -> int:
        """Append a device; what a record's `device` is then."""
        count = int(self.library["device_count"][0])
        device = self.library["devices"][0][count : count + 1]
        device["uuid"] = np.frombuffer(uuid, np.uint8)
        device["model"], device["multiprocessors"] = model, multiprocessors
        self.library["device_count"] = count + 1
        return count

    def open_window(self) -> int:
        """Begin to capture; when."""
        now_ns = time.monotonic_ns()
        self.write(edge(GpuKind.WINDOW_OPEN, now_ns))
        self.library["generation"] = self.control["generation"]
        self.library["state"] = LibraryState.CAPTURING
        return now_ns

    def close_window(self, incomplete: int = 0) -> int:
        """End it; when."""
        now_ns = time.monotonic_ns()
        self.write(edge(GpuKind.WINDOW_CLOSE, now_ns, incomplete))
        self.library["state"] = LibraryState.DORMANT
        return now_ns

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait(LIMIT_S)


@contextlib.contextmanager
def target(
    *,
    name: str = "otel_gpuflame",
    slots: int = SLOTS,
    size_bytes: int | None = None,
    is_sealed: bool = True,
    is_mapped: bool = True,
    forks: bool = False,
    is_made: bool = True,
    variables: Mapping[str, str] | None = None,
    regions: int = 1,
) -> Iterator[Writer]:
    """A process with a region, with `variables` in its environment."""
    size = 2 * PAGE + slots * 96 + NAMES_BYTES if size_bytes is None else size_bytes
    flags = map(str, (size, int(is_sealed), int(is_mapped), int(forks), regions))
    command = [sys.executable, "-I", "-S", "-c", _TARGET, name, *flags]
    with subprocess.Popen(
        command,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            pid, child, *fds = map(int, process.stdout.readline().split())
            writer, *others = (Writer(process, size, (pid, child, fd)) for fd in fds)
            writer.others = others
            for each in (writer, *others) if is_made else ():
                each.make(slots)
            yield writer
        finally:
            # Its child, too, ends when this pipe does.
            process.kill()


def edge(kind: GpuKind, time_ns: int, detail: int = 0) -> NDArray[Any]:
    """The record of a window's begin or end."""
    records = np.zeros(1, wire_gpu.RECORD)
    records["kind"], records["start_ns"], records["end_ns"] = kind, time_ns, time_ns
    records["detail"], records["device"] = detail, 255
    return records


def kernels(count: int, **columns: Any) -> NDArray[Any]:
    """Records of kernels that have just run, one after the other."""
    records = np.zeros(count, wire_gpu.RECORD)
    records["kind"], records["device"] = GpuKind.KERNEL, 255
    records["start_ns"] = time.monotonic_ns() - 1000 * np.arange(count, 0, -1)
    records["end_ns"] = records["start_ns"] + 500
    records["correlation_id"] = np.arange(1, count + 1)
    for column, values in columns.items():
        records[column] = values
    return records
