"""Python's side of drain.c: BPF rings arrive as numpy arrays, whatever the interpreter lock is doing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import SourceUnavailable

LIBRARY: Final = Path(__file__).parents[2] / "_artifacts" / "libogf_drain.so"
POLL_NS: Final = 2_000_000
"""Pause between sweeps: a 16 MiB ring holds 110,000 calls, which is 2 s at 50,000 calls/s."""


_READ_ONLY: Final = 0x100
"""PyBUF_READ"""
_view: Final = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (c_void_p, ctypes.c_ssize_t, c_int)


@dataclass(frozen=True, slots=True)
class Ring:
    """A BPF ring buffer. `record_size` 0: records of any length, each behind a u64 of its length when drained."""

    map_fd: int
    size: int
    record_size: int
    capacity: int


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY), use_errno=True)
    except OSError as error:
        raise SourceUnavailable(
            f"{error}. The package was built without its native parts: run `make bpf`, or reinstall it "
            "on a machine with a C compiler."
        ) from error
    library.ogf_drain_open.restype = c_void_p
    library.ogf_drain_open.argtypes = (c_uint64,)
    library.ogf_drain_add.argtypes = (c_void_p, c_int, c_uint64, c_uint64, c_uint64)
    library.ogf_drain_start.argtypes = (c_void_p,)
    library.ogf_drain_swap.restype = c_uint64
    library.ogf_drain_swap.argtypes = (c_void_p, c_uint64)
    library.ogf_drain_data.restype = c_void_p
    library.ogf_drain_data.argtypes = (c_void_p, c_int, POINTER(c_uint64))
    library.ogf_drain_malformed.restype = c_uint64
    library.ogf_drain_malformed.argtypes = (c_void_p, c_int)
    library.ogf_drain_stop.argtypes = (c_void_p,)
    library.ogf_drain_close.argtypes = (c_void_p,)
    return library


class Drain:
    """A thread of C that empties rings. The first ring holds calls, the last what is urgent (processes)."""

    def __init__(self, rings: Sequence[Ring], *, poll_ns: int = POLL_NS) -> None:
        self._library = _load()
        self._handle: int | None = self._library.ogf_drain_open(poll_ns)
        if not self._handle:
            raise SourceUnavailable("no memory or no descriptor for the ring drain")
        for ring in rings:
            result = self._library.ogf_drain_add(
                self._handle, ring.map_fd, ring.size, ring.record_size, ring.capacity
            )
            if result < 0:
                self.close()
                raise SourceUnavailable(f"cannot map a BPF ring buffer (errno {-result})")

    def start(self) -> None:
        """Start sweeping."""
        if self._library.ogf_drain_start(self._handle):
            raise SourceUnavailable("cannot start the drain thread")

    def swap(self, timeout_ns: int) -> int:
        """Wait for urgent data up to `timeout_ns`, then expose what arrived; 0 sweeps at once.

        Returns the time (CLOCK_MONOTONIC ns) up to which everything sent is included.
        """
        return int(self._library.ogf_drain_swap(self._handle, timeout_ns))

    def data(self, index: int) -> NDArray[np.uint8]:
        """Bytes of a ring since the last swap but one. A view: valid until the next swap."""
        length = c_uint64()
        address = self._library.ogf_drain_data(self._handle, index, ctypes.byref(length))
        if not length.value:
            return np.empty(0, np.uint8)
        # Not by np.ctypeslib.as_array: it leaves a type behind for each length, 2 KiB that are never freed.
        return np.frombuffer(_view(address, length.value, _READ_ONLY), np.uint8)

    def malformed(self, index: int) -> int:
        """Records of a ring that were skipped because of their length, since the start."""
        return int(self._library.ogf_drain_malformed(self._handle, index))

    def stop(self) -> None:
        """Stop the thread; `swap(0)` still returns what is left."""
        self._library.ogf_drain_stop(self._handle)

    def close(self) -> None:
        """Stop and free everything; views become invalid. Safe to call twice."""
        if self._handle:
            self._library.ogf_drain_close(self._handle)
            self._handle = None


def split_records(data: NDArray[np.uint8]) -> list[bytes]:
    """Records of a ring of variable length: each is a u64 length and that many bytes, padded to 8."""
    records = []
    position, end = 0, len(data)
    view = data.data
    while position < end:
        length = int.from_bytes(view[position : position + 8], "little")
        position += 8
        records.append(bytes(view[position : position + length]))
        position += (length + 7) & ~7
    return records
