"""The shared memory of one process, read as what it is: written by somebody who may be hostile, at any time.

Only the two pages of heads are mapped: loads and stores of one word are whole there. Records and names are read from
the file, which copies them before anybody looks, and neither faults nor takes memory, whatever the heads say.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.cupti.clients import OwnCalls
from otel_gpuflame.capture.cupti.errors import MalformedError, NotReadyError, OtherVersionError
from otel_gpuflame.capture.cupti.find import RegionFile
from otel_gpuflame.events import wire_gpu
from otel_gpuflame.events.wire_gpu import Limit

_HEAD_BYTES: Final = 2 * Limit.PAGE_BYTES
_MAGIC: Final = 0x0031555047464F67
"""OGF_GPU_MAGIC; a number of 64 bits that BTF has no room for."""
_MAX_SLOTS: Final = int(Limit.RECORD_SLOTS)
_MAX_NAMES_BYTES: Final = int(Limit.NAMES_BYTES)

RecordArray = NDArray[np.void]
"""Structured array of `wire_gpu.RECORD`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things lie. Checked once, and never read again."""

    records_offset: int
    record_slots: int
    names_offset: int
    names_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How far the library has come. What it means for anybody else is checked by who uses it."""

    generation: int
    complete_ns: int
    state: int
    error: int
    cupti_result: int
    records_head: int
    names_head: int
    device_count: int


class Region:
    """Takes over `file`. Raises NotReadyError, MalformedError, OtherVersionError."""

    def __init__(self, file: RegionFile) -> None:
        self.inode = file.inode
        self._fd = file.fd
        try:
            self._memory = _mapped(file.fd)
            self._library: NDArray[Any] = np.frombuffer(self._memory, wire_gpu.LIBRARY, 1)
            self.control: NDArray[Any] = np.frombuffer(
                self._memory, wire_gpu.CONTROL, 1, Limit.PAGE_BYTES
            )
            self.layout = _checked_layout(self._library.copy()[0], file.size_bytes)
        except BaseException:
            os.close(file.fd)
            raise

    def heads(self) -> Heads:
        """Each word is loaded once, those that promise something before those that it is promised of.

        `state` is of that `generation` or of a later one. What was written before `complete_ns` and `state` were is
        below `records_head`; what records refer to is below `names_head` and `device_count`.
        """
        library = self._library
        generation, complete_ns = int(library["generation"][0]), int(library["complete_ns"][0])
        state = int(library["state"][0])
        records_head = int(library["records_head"][0])
        return Heads(
            generation=generation,
            complete_ns=complete_ns,
            state=state,
            error=int(library["error"][0]),
            cupti_result=int(library["cupti_result"][0]),
            records_head=records_head,
            names_head=int(library["names_head"][0]),
            device_count=int(library["device_count"][0]),
        )

    @property
    def is_untouched(self) -> bool:
        """Whether no exporter has written to it yet."""
        return not self.control.view(np.uint8).any()

    @property
    def uses_cupti(self) -> bool:
        """Whether the library has found a CUPTI: the layer of OpenCL needs none."""
        return int(self._library["cupti_version"][0]) != 0

    def own_calls(self, clock_offset_ns: int) -> OwnCalls:
        """Which calls of CUPTI are the library's; `clock_offset_ns`: what its clock is ahead of ours."""
        library = self._library
        # The end first: where there is none yet, it comes after whatever has been called.
        end_ns = int(library["init_end_ns"][0])
        return OwnCalls(
            worker_thread=int(library["worker_thread"][0]),
            init_thread=int(library["init_thread"][0]),
            init_begin_ns=int(library["init_begin_ns"][0]) - clock_offset_ns,
            init_end_ns=end_ns - clock_offset_ns if end_ns else None,
        )

    def counters(self) -> list[int]:
        """The library's totals, by `LibraryCounter`."""
        counters: list[int] = self._library["counters"][0].tolist()
        return counters

    def devices(self, count: int) -> NDArray[Any]:
        """A copy of the first `count` devices. Raises MalformedError."""
        if count > Limit.MAX_DEVICES:
            raise MalformedError(f"{count} devices")
        devices: NDArray[Any] = self._library["devices"][0][:count].copy()
        return devices

    def records(self, tail: int, head: int) -> RecordArray:
        """A copy of the records [tail, head). Raises MalformedError where the ring cannot hold them."""
        count, slots = head - tail, self.layout.record_slots
        if not 0 <= count <= slots:
            raise MalformedError(f"a head of {head} records, of which {tail} were read")
        copy = np.empty(count, wire_gpu.RECORD)
        first = tail % slots
        before_wrap = min(count, slots - first)
        size_bytes = wire_gpu.RECORD.itemsize
        start = self.layout.records_offset
        self._read(copy[:before_wrap], start + first * size_bytes)
        self._read(copy[before_wrap:], start)
        return copy

    def names(self, start: int, end: int) -> bytes:
        """A copy of the bytes [start, end) of the names. Raises MalformedError."""
        if not 0 <= start <= end <= self.layout.names_bytes:
            raise MalformedError(f"a head of {end} bytes of names, of which {start} were read")
        copy = np.empty(end - start, np.uint8)
        self._read(copy, self.layout.names_offset + start)
        return copy.tobytes()

    def close(self) -> None:
        """Unmap and close. Safe to call twice."""
        if self._fd >= 0:
            # Views keep the mapping in use.
            del self._library, self.control
            self._memory.close()
            os.close(self._fd)
            self._fd = -1

    def _read(self, into: NDArray[Any], offset: int) -> None:
        try:
            count = os.preadv(self._fd, [into.view(np.uint8).data], offset) if into.nbytes else 0
        except OSError as error:
            raise MalformedError(f"a region that cannot be read: {error.strerror}") from error
        if count != into.nbytes:
            raise MalformedError("a region that is shorter than it was")


def _mapped(fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, _HEAD_BYTES)
    except OSError as error:
        # Sealed against writing, for example.
        raise MalformedError(f"a region that cannot be mapped: {error.strerror}") from error


def _checked_layout(library: np.void, size_bytes: int) -> Layout:
    if library["magic"] == 0:
        raise NotReadyError("a region without its magic number yet")
    if library["magic"] != _MAGIC:
        raise MalformedError("a region with another magic number")
    if library["abi"] != Limit.ABI:
        raise OtherVersionError(f"version {library['abi']} of the region, and not {Limit.ABI:d}")
    layout = Layout(
        records_offset=int(library["records_offset"]),
        record_slots=int(library["record_slots"]),
        names_offset=int(library["names_offset"]),
        names_bytes=int(library["names_bytes"]),
    )
    slots = layout.record_slots
    records_end = layout.records_offset + slots * wire_gpu.RECORD.itemsize
    is_sound = (
        library["record_bytes"] == wire_gpu.RECORD.itemsize
        and library["region_bytes"] == size_bytes
        and 0 < slots <= _MAX_SLOTS
        and slots & (slots - 1) == 0
        and 0 < layout.names_bytes <= _MAX_NAMES_BYTES
        and layout.records_offset >= _HEAD_BYTES
        and records_end <= layout.names_offset
        and layout.names_offset + layout.names_bytes <= size_bytes
    )
    if not is_sound:
        raise MalformedError(f"a region of {size_bytes} bytes with an impossible layout")
    return layout
