"""The exporter's side of the shared memory, as small as a test needs it: finds it, lends, reads."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import (
    CONTROL,
    LIBRARY,
    RECORD,
    GpuKind,
    LibraryCounter,
    LibraryState,
    Limit,
)

NS_PER_S = 1_000_000_000
PATIENCE_S = 300.0
"""How long something may take that must happen; only a broken library uses it up."""

LEASE_S = 9.0
"""The library cuts what is longer than 10 s."""

_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class NoRegionError(RuntimeError):
    """The process shares no memory with us."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Look until it is so.

    Raises:
        TimeoutError: it did not become so.
    """
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{PATIENCE_S} s passed without {what}")
        time.sleep(0.002)


def find_region(pid: int) -> Path:
    """The library's memfd among the descriptors of a process.

    Raises:
        NoRegionError: there is none.
    """
    for link in find_regions(pid):
        return link
    raise NoRegionError(f"process {pid} has no memfd otel_gpuflame")


def find_regions(pid: int) -> list[Path]:
    """Those of all our libraries."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith("/memfd:otel_gpuflame "):
                found.append(link)
    return found


def prolong(control: NDArray[np.void], enough: threading.Event) -> None:
    """As an exporter does; without a wake, since an open window is looked at all the time."""
    until = time.monotonic() + PATIENCE_S
    while not enough.wait(1) and time.monotonic() < until:
        control["lease_until_ns"] = int((time.monotonic() + LEASE_S) * NS_PER_S)


class Region:
    """The shared memory of one process, mapped for reading and writing."""

    def __init__(self, pid: int, link: Path | None = None) -> None:
        fd = os.open(link or find_region(pid), os.O_RDWR)
        try:
            self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self.library: NDArray[np.void] = np.frombuffer(self._memory, LIBRARY, 1)
        self.control: NDArray[np.void] = np.frombuffer(self._memory, CONTROL, 1, Limit.PAGE_BYTES)
        self._records: NDArray[np.void] = np.frombuffer(
            self._memory, RECORD, Limit.RECORD_SLOTS, 2 * Limit.PAGE_BYTES
        )
        self._names_offset = 2 * Limit.PAGE_BYTES + Limit.RECORD_SLOTS * RECORD.itemsize
        self._tail = 0
        self._lender: threading.Thread | None = None
        self._enough = threading.Event()

    def field(self, name: str) -> Any:
        """A field of the library's page."""
        return self.library[name][0]

    @property
    def state(self) -> LibraryState:
        """What the library is doing."""
        return LibraryState(int(self.field("state")))

    def counter(self, counter: LibraryCounter) -> int:
        """One of the library's totals."""
        return int(self.field("counters")[counter])

    def wake(self) -> None:
        """Tell the library that something has changed."""
        self.control["wake"] += 1
        address = ctypes.c_void_p(self.control["wake"].ctypes.data)
        _LIBC.syscall(_FUTEX, address, _FUTEX_WAKE, 1, None, None, 0)

    def lend(self, seconds: float, *, generation: int | None = None) -> None:
        """A lease from now on; without `generation` it prolongs the one that runs."""
        if generation is not None:
            self.control["generation"] = generation
        until_s = time.monotonic() + seconds
        self.control["lease_until_ns"] = max(0, int(until_s * NS_PER_S))
        self.wake()

    def keep_lending(self, generation: int) -> None:
        """A lease that is prolonged until `close_window`, however long what it is for takes on a busy machine."""
        self._stop_lending()
        self.lend(LEASE_S, generation=generation)
        self._lender = threading.Thread(
            target=prolong, args=(self.control, self._enough), daemon=True
        )
        self._lender.start()

    def open_window(self, generation: int) -> None:
        """Lend, wait until the library captures for that lease, and go on lending until `close_window`."""
        self.keep_lending(generation)
        wait_for(
            lambda: (
                self.state == LibraryState.CAPTURING and int(self.field("generation")) == generation
            ),
            f"window {generation}",
        )

    def _stop_lending(self) -> None:
        self._enough.set()
        if self._lender is not None:
            self._lender.join()
        self._enough.clear()
        self._lender = None

    def close_window(self) -> None:
        """End the lease, and wait until the library has closed its window."""
        self._stop_lending()
        self.lend(-1)
        wait_for(lambda: self.state != LibraryState.CAPTURING, "the end of the window")

    def other_has_begun(self) -> None:
        """Say that another client of CUPTI is at work."""
        self.control["others_begun"] += 1
        self.wake()

    def others_have_ended(self) -> None:
        """Say that whoever was at work, has ended, whether or not we said that it had begun."""
        ended = int(self.control["others_ended"][0]) + 1
        self.control["others_begun"] = self.control["others_ended"] = ended
        self.wake()

    def lease_is_over(self) -> bool:
        """Whether the last lease has run out."""
        return time.monotonic_ns() > int(self.control["lease_until_ns"][0])

    def peek(self) -> NDArray[np.void]:
        """The same as `read`, which gives them once more."""
        return self._copy(int(self.field("records_head")))

    def read(self) -> NDArray[np.void]:
        """Copies of the records that were written since the last call."""
        head = int(self.field("records_head"))
        records = self._copy(head)
        self._tail = head
        self.control["records_tail"] = head
        return records

    def _copy(self, head: int) -> NDArray[np.void]:
        slots = np.arange(self._tail, head, dtype=np.uint64) % np.uint64(Limit.RECORD_SLOTS)
        copies: NDArray[np.void] = self._records[slots.astype(np.int64)].copy()
        return copies

    def name(self, handle: int) -> str:
        """The kernel's name of a record's `name`."""
        assert handle > 0
        at = self._names_offset + handle - 1
        size = int.from_bytes(self._memory[at : at + 4], "little")
        assert size <= Limit.MAX_NAME_BYTES
        return self._memory[at + 4 : at + 4 + size].decode()


def of_kind(records: NDArray[np.void], kind: GpuKind) -> NDArray[np.void]:
    """Those of one kind."""
    chosen: NDArray[np.void] = records[records["kind"] == kind]
    return chosen
