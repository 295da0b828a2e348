"""Records of a region as rows of `EXECUTION`, and the begins and ends of windows between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.cupti.counts import (
    BAD_REFERENCE,
    MALFORMED,
    WRONG_CLOCK,
    Counts,
)
from otel_gpuflame.capture.cupti.errors import MalformedError
from otel_gpuflame.capture.cupti.names import NameEntries
from otel_gpuflame.capture.cupti.region import RecordArray
from otel_gpuflame.events import wire_gpu
from otel_gpuflame.events.executions import EXECUTION, NO_DEVICE, ExecutionArray, name_handle
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete

_COPIED: Final = tuple(
    name
    for name in wire_gpu.RECORD.names or ()
    if name in (EXECUTION.names or ()) and name not in ("device", "name", "start_ns", "end_ns")
)
_NO_DEVICE_RECORD: Final = 255
_COUNTED_BY_LIBRARY: Final = ("correlation_id", "context_id")
_ID_BITS: Final = 31
"""What is left of an id where a process has a second region, which sets the bit above."""
_MAX_EDGES: Final = 64
"""Begins and ends of windows in one read. A window lasts milliseconds at the least, and each end is an event."""
_CLOCK_SLACK_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Opened:
    """A window begins."""

    time_ns: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A window ends; `incomplete` says why something is missing, empty: nothing is."""

    time_ns: int
    incomplete: str


Piece = Opened | Closed | RecordArray


def reason(detail: int) -> str:
    """`Incomplete` as events have it."""
    try:
        incomplete = Incomplete(detail)
    except ValueError:
        return f"reason_{detail}"
    return "" if incomplete is Incomplete.COMPLETE else incomplete.name.lower()


def pieces(records: RecordArray) -> list[Piece]:
    """Records cut at the begins and ends of windows. Raises MalformedError where these are implausibly many."""
    kinds = records["kind"]
    is_edge = (kinds == GpuKind.WINDOW_OPEN) | (kinds == GpuKind.WINDOW_CLOSE)
    edges = np.flatnonzero(is_edge).tolist()
    if len(edges) > _MAX_EDGES:
        raise MalformedError(f"{len(edges)} begins and ends of windows in {len(records)} records")
    found: list[Piece] = []
    begin = 0
    for edge in edges:
        found.append(records[begin:edge])
        found.append(_edge(records[edge]))
        begin = edge + 1
    found.append(records[begin:])
    return [piece for piece in found if isinstance(piece, Opened | Closed) or len(piece)]


def _edge(record: np.void) -> Opened | Closed:
    """Switching takes a while: complete is what lies between the end of the begin and the begin of the end."""
    if record["kind"] == GpuKind.WINDOW_OPEN:
        return Opened(int(record["end_ns"]))
    return Closed(int(record["start_ns"]), reason(int(record["detail"])))


class RowReader:
    """Makes rows of the records of one process. `counts` says what did not fit."""

    def __init__(self, names: NameEntries, clock_offset_ns: int = 0, number: int = 0) -> None:
        self._names = names
        self._clock_offset_ns = clock_offset_ns
        self._number = number
        """Of the region among those of its process: each library counts ids for itself."""
        self.counts: Counts = Counter()

    def rows(
        self,
        records: RecordArray,
        process: ProcessKey,
        devices: NDArray[np.uint32],
        now_ns: int,
    ) -> ExecutionArray:
        """Rows of all records of kinds KERNEL to OVERHEAD; `devices` as from `number_table`."""
        kinds = records["kind"]
        is_sound = (kinds >= GpuKind.KERNEL) & (kinds <= GpuKind.OVERHEAD)
        if not is_sound.all():
            self.counts[MALFORMED] += int(len(records) - is_sound.sum())
            records = records[is_sound]
        rows = np.zeros(len(records), EXECUTION)
        for name in _COPIED:
            rows[name] = records[name]
        rows["process_start_ns"] = process.start_ns
        rows["tgid"] = process.tgid
        for name in _COUNTED_BY_LIBRARY if self._number else ():
            rows[name] |= np.uint32(self._number << _ID_BITS)
        self._set_devices(rows, records, devices)
        self._set_names(rows, records)
        self._set_times(rows, records, process.start_ns, now_ns)
        return rows

    def _set_devices(
        self, rows: ExecutionArray, records: RecordArray, devices: NDArray[np.uint32]
    ) -> None:
        found = devices[records["device"]]
        rows["device"] = found
        claimed = records["device"] != _NO_DEVICE_RECORD
        self.counts[BAD_REFERENCE] += int((claimed & (found == NO_DEVICE)).sum())

    def _set_names(self, rows: ExecutionArray, records: RecordArray) -> None:
        names = records["name"]
        known = self._names.are_known(names)
        handles = (names - np.uint32(1)).astype(np.uint64) | np.uint64(name_handle(0, self._number))
        rows["name"] = np.where(known, handles, np.uint64(0))
        self.counts[BAD_REFERENCE] += int(((names != 0) & ~known).sum())

    def _set_times(
        self, rows: ExecutionArray, records: RecordArray, born_ns: int, now_ns: int
    ) -> None:
        """Another client of CUPTI may have put its own clock in place: such times mean nothing, and become 0."""
        offset = np.int64(self._clock_offset_ns)
        earliest = max(born_ns + self._clock_offset_ns - _CLOCK_SLACK_NS, 0)
        latest = max(now_ns + self._clock_offset_ns + _CLOCK_SLACK_NS, 0)
        start, end = records["start_ns"], records["end_ns"]
        has_time = (start != 0) & (end != 0)
        is_ours = (start >= earliest) & (start <= latest) & (end >= earliest) & (end <= latest)
        for name, times in (("start_ns", start), ("end_ns", end)):
            ours = (times.astype(np.int64) - offset).astype(np.uint64)
            rows[name] = np.where(is_ours, ours, np.uint64(0))
        self.counts[WRONG_CLOCK] += int((has_time & ~is_ours).sum())
