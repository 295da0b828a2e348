"""When each device was busy, and when it was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import Index, TimeKeys, Times, running_max
from otel_gpuflame.correlate.gpu.rows import JoinedArray


@dataclass(frozen=True, slots=True)
class Busy:
    """Union of all executions by device: intervals that neither overlap nor touch, by device and time."""

    device: NDArray[np.uint32]
    start_ns: Times
    end_ns: Times
    row: Index
    """The execution with which each begins."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times in which a device was not busy, by device and time."""

    device: NDArray[np.uint32]
    start_ns: Times
    end_ns: Times
    ended_by: Index
    """The execution that ended it; -1: none is known."""
    is_first: NDArray[np.bool_]
    """Nothing is known to have run before."""


def busy_intervals(rows: JoinedArray) -> Busy:
    """From `rows`, sorted by device and start."""
    device, start, end = (rows[name].copy() for name in ("device", "start_ns", "end_ns"))
    if len(rows) and device[0] == device[-1]:
        return busy_on(int(device[0]), start, end)
    reach = running_max(device.astype(np.int64), end)
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (device[1:] != device[:-1]) | (start[1:] > reach[:-1])
    return _busy(device, start, reach, begins)


def busy_on(device: int, start_ns: Times, end_ns: Times) -> Busy:
    """The same of one device, from executions in the order of their start."""
    reach = np.maximum.accumulate(end_ns)
    begins = np.ones(len(start_ns), np.bool_)
    begins[1:] = start_ns[1:] > reach[:-1]
    return _busy(np.broadcast_to(np.uint32(device), len(start_ns)), start_ns, reach, begins)


def _busy(
    device: NDArray[np.uint32], start: Times, reach: Times, begins: NDArray[np.bool_]
) -> Busy:
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start))[: len(first)] - 1
    return Busy(device[first], start[first], reach[last], first)


def find_gaps(
    busy: Busy, devices: NDArray[np.uint32], start_ns: int, end_ns: int
) -> tuple[Gaps, NDArray[np.int64]]:
    """Gaps of each of `devices` (sorted, distinct) from `start_ns` to `end_ns`, and for how long each was busy.

    Executions outside of that time count for what ran before a gap, and for what ended it.
    """
    count = len(devices)
    own = np.flatnonzero(np.isin(busy.device, devices) & (busy.end_ns > busy.start_ns))
    code = np.searchsorted(devices, busy.device[own])
    order = np.arange(count)
    # Before the first and after each interval there is a gap, that lasts until the next interval.
    gap_code = np.concatenate([order, code])
    gap_start = np.concatenate([np.full(count, start_ns, np.uint64), busy.end_ns[own]])
    place = np.concatenate([np.full(count, -1), np.arange(len(own))])
    if count > 1:
        order = np.lexsort((place, gap_code))
        gap_code, gap_start, place = gap_code[order], gap_start[order], place[order]
    is_first = place < 0
    following = np.searchsorted(code, gap_code)
    following = np.where(is_first, following, place + 1)
    within = np.minimum(following, max(len(own) - 1, 0))
    has_next = (following < len(own)) & (code[within] == gap_code) if len(own) else is_first & False
    limit = np.uint64(end_ns)
    until = np.full(len(gap_code), limit)
    ended_by = np.full(len(gap_code), -1, np.intp)
    nexts = own[following[has_next]]
    until[has_next] = np.minimum(busy.start_ns[nexts], limit)
    ended_by[has_next] = busy.row[nexts]
    begin = np.maximum(gap_start, np.uint64(start_ns))
    real = np.flatnonzero(until > begin)
    length = np.zeros(count, np.int64)
    np.add.at(length, gap_code[real], (until[real] - begin[real]).astype(np.int64))
    gaps = Gaps(devices[gap_code[real]], begin[real], until[real], ended_by[real], is_first[real])
    return gaps, max(end_ns - start_ns, 0) - length


def covered_until(busy: Busy, device: NDArray[np.uint32], at_ns: Times) -> Times:
    """(n,) until when the device was busy without a break from each time on; the time itself where it was not."""
    if not len(busy.device):
        return at_ns
    keys = TimeKeys(int(busy.device[-1]) + 1, busy.start_ns)
    packed = keys.pack(busy.device.astype(np.int64), busy.start_ns)
    place = keys.find(packed, device.astype(np.int64), at_ns, "right") - 1
    had = np.maximum(place, 0)
    is_busy = (place >= 0) & (busy.device[had] == device)
    return np.maximum(at_ns, np.where(is_busy, busy.end_ns[had], 0))
