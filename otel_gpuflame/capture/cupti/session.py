"""One process with a region: its lease, and what it says as events."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from otel_gpuflame.capture.cupti.clients import Change, Clients
from otel_gpuflame.capture.cupti.counts import (
    BAD_REFERENCE,
    MALFORMED,
    MALFORMED_READ,
    OUTSIDE_WINDOW,
    SENT,
    Counts,
    LibraryTotals,
)
from otel_gpuflame.capture.cupti.errors import MalformedError
from otel_gpuflame.capture.cupti.intake import Intake, Taken
from otel_gpuflame.capture.cupti.names import NameEntries
from otel_gpuflame.capture.cupti.reader import Closed, Opened, Piece, RowReader, pieces
from otel_gpuflame.capture.cupti.region import Heads, RecordArray, Region
from otel_gpuflame.capture.host_devices import HostDevices, number_table
from otel_gpuflame.capture.names import shorten
from otel_gpuflame.events.executions import (
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
    name_handle,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event, HandleName, Names
from otel_gpuflame.events.wire_gpu import LibraryState

logger = logging.getLogger(__name__)

MAX_MALFORMED: Final = 16
"""Reads with something malformed in them, after which a region is left alone."""

Demangle = Callable[[str], str]


class Session:
    """Reads one region until its process ends or it has been malformed too often.

    While the process is not known (`is_known`: BPF says when exactly it began, with its first call), records wait,
    but no more than half a ring of them. A window that began after `since_ns` is of interest, whoever opened it.
    `number`: which of its process's regions this is, from 0.
    """

    def __init__(
        self,
        region: Region,
        process: ProcessKey,
        devices: HostDevices,
        readable: Demangle,
        *,
        is_known: bool = True,
        clock_offset_ns: int = 0,
        since_ns: int | None = None,
        number: int = 0,
    ) -> None:
        self.process = process
        self._number = number
        self._is_known = is_known
        self.intake = Intake(region, clock_offset_ns, since_ns)
        self.malformed_reads = 0
        self.inode = region.inode
        self.unusable: tuple[int, int] | None = None
        """Error and CUPTI's result, once the library has said that it cannot record, or not this time."""
        self._devices = devices
        self._readable = readable
        self._clock_offset_ns = clock_offset_ns
        self._names = NameEntries(region.layout.names_bytes)
        self._numbers: list[int] = []
        self._reader = RowReader(self._names, clock_offset_ns, number)
        self._counts: Counts = Counter()
        counters = region.counters()
        self._library_totals = LibraryTotals(
            [0] * len(counters) if self.intake.is_whole else counters
        )
        self._patience = region.layout.record_slots // 2
        self._is_open = False
        self._was_capturing = False
        self._complete_ns = 0
        self._is_closed = False
        self._fault = ""
        """What was wrong with this read."""

    @property
    def is_open(self) -> bool:
        """Whether a window has begun, and its end has not been read."""
        if self._is_closed:
            return False
        return self._is_open or self.intake.region.heads().state == LibraryState.CAPTURING

    @property
    def has_failed(self) -> bool:
        """Whether there is nothing more to be had from this region."""
        return self._is_closed or self.malformed_reads >= MAX_MALFORMED

    def know(self, process: ProcessKey) -> bool:
        """Who has that pid; False: that is not the process that this is about."""
        if not self._is_known:
            self.process, self._is_known = process, True
        return self.process == process

    def poll(self, now_ns: int) -> list[Event]:
        """What has been written since; keeps the lease running."""
        if self.has_failed:
            return []
        waiting = self.intake.pump(now_ns)
        if not self._is_known and waiting < self._patience:
            return []
        self._is_known = True
        taken = self.intake.take()
        self._fault = taken.fault
        unsound_before = self._unsound
        events = list(self._read(taken, now_ns))
        if self._unsound != unsound_before:
            self._fault = self._fault or "records that refer to what is not there"
        if self._fault:
            self._note_malformed(self._fault)
        if self.malformed_reads >= MAX_MALFORMED:
            events += self._stop(now_ns, "malformed")
        else:
            events += self._watermark(taken.heads, now_ns)
            events += self._state(taken.heads, now_ns)
        return events

    def mind(self, clients: Clients, now_ns: int) -> Change | None:
        """Have the library make way for other clients of CUPTI, and come back; what has changed."""
        if self.has_failed:
            return None
        intake = self.intake
        own = intake.region.own_calls(self._clock_offset_ns)
        change = clients.judge(own, now_ns, is_displaced=intake.is_displaced)
        if change is Change.BEGAN:
            intake.others_begin()
        elif change is Change.ENDED:
            intake.others_end(now_ns)
        return change

    def end(self, now_ns: int, reason: str) -> list[Event]:
        """The process has ended, or must not be waited for any longer: what is left, then the end."""
        self._is_known = True
        # Twice: a full queue kept the rest in the ring.
        events = self.poll(now_ns) + self.poll(now_ns)
        return events + self._stop(now_ns, reason)

    def totals(self) -> Counts:
        """Counts of the library and of this side; the last ones when it has ended."""
        if not self._is_closed:
            self._library_totals.take(self.intake.region.counters())
        return self._library_totals.counts() + self._counts + self._reader.counts

    @property
    def _unsound(self) -> int:
        return self._reader.counts[MALFORMED] + self._reader.counts[BAD_REFERENCE]

    def _read(self, taken: Taken, now_ns: int) -> Iterator[Event]:
        if not taken.batches:
            return
        heads = taken.heads
        try:
            yield from self._learn_devices(heads)
            yield from self._learn_names(heads)
        except MalformedError as error:
            # Records are delivered all the same, with what is known.
            self._fault = str(error)
        for records in taken.batches:
            yield from self._read_batch(records, heads, now_ns)

    def _read_batch(self, records: RecordArray, heads: Heads, now_ns: int) -> Iterator[Event]:
        try:
            cut = pieces(records)
        except MalformedError as error:
            self._fault = str(error)
            self._counts[MALFORMED] += len(records)
            return
        for piece in cut:
            yield from self._piece(piece, now_ns)
            if isinstance(piece, Closed) and piece.incomplete == "refused":
                self.unusable = (heads.error, heads.cupti_result)

    def _piece(self, piece: Piece, now_ns: int) -> Iterator[Event]:
        if isinstance(piece, Opened | Closed):
            # A record like others, and delivered as another event.
            self._counts[SENT] += 1
        if isinstance(piece, Opened):
            if self._is_open:
                yield ExecutionsEnd(self.process, self._ours(piece.time_ns, now_ns), "not_flushed")
            self._is_open, self._was_capturing = True, False
            yield ExecutionsBegin(self.process, self._ours(piece.time_ns, now_ns))
        elif isinstance(piece, Closed):
            if self._is_open:
                self._is_open = False
                yield ExecutionsEnd(
                    self.process, self._ours(piece.time_ns, now_ns), piece.incomplete
                )
        elif not self._is_open:
            # Of a window that an earlier exporter had opened, or one that began before our time.
            self._counts[OUTSIDE_WINDOW] += len(piece)
        else:
            rows = self._reader.rows(piece, self.process, number_table(self._numbers), now_ns)
            self._counts[SENT] += len(rows)
            if len(rows):
                yield Executions(rows)

    def _learn_devices(self, heads: Heads) -> Iterator[Event]:
        if heads.device_count != len(self._numbers):
            rows = self.intake.region.devices(heads.device_count)
            self._numbers, fresh = self._devices.learn(rows, self.process)
            if fresh:
                yield Devices(tuple(fresh))

    def _learn_names(self, heads: Heads) -> Iterator[Event]:
        data = self.intake.region.names(self._names.head, heads.names_head)
        found = self._names.take(data)
        if found:
            yield Names(tuple(self._handle_name(offset, name) for offset, name in found))

    def _handle_name(self, offset: int, name: str) -> HandleName:
        # Entries never change: what one means, it has meant from the beginning.
        return HandleName(
            self.process,
            self.process.start_ns,
            name_handle(offset, self._number),
            name,
            shorten(self._readable(name)),
        )

    def _watermark(self, heads: Heads, now_ns: int) -> Iterator[Event]:
        complete_ns = self._ours(heads.complete_ns, now_ns)
        if self._is_open and complete_ns > self._complete_ns:
            self._complete_ns = complete_ns
            yield ExecutionWatermark(self.process, complete_ns)

    def _state(self, heads: Heads, now_ns: int) -> Iterator[Event]:
        if heads.state == LibraryState.UNUSABLE:
            self.unusable = (heads.error, heads.cupti_result)
            yield from self._close_window(now_ns, "refused")
        elif heads.state == LibraryState.CAPTURING:
            self._was_capturing = True
        elif self._was_capturing:
            # It said that the window is over, and all that was written by then has been read.
            yield from self._close_window(now_ns, "ring_full")

    def _close_window(self, now_ns: int, incomplete: str) -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            yield ExecutionsEnd(self.process, now_ns, incomplete)

    def _stop(self, now_ns: int, incomplete: str) -> list[Event]:
        """No more of this region."""
        events: list[Event] = list(self._close_window(now_ns, incomplete))
        if not self._is_closed:
            self.totals()
            self._is_closed = True
            self.intake.close()
        return events

    def _note_malformed(self, what: str) -> None:
        self.malformed_reads += 1
        self._counts[MALFORMED_READ] += 1
        if self.malformed_reads == MAX_MALFORMED:
            logger.warning(
                "process %d: its GPU times are left alone: %s, which our library never writes",
                self.process.tgid,
                what,
            )

    def _ours(self, time_ns: int, now_ns: int) -> int:
        """A time of the process in our clock, neither before the process nor in the future."""
        return int(np.clip(time_ns - self._clock_offset_ns, self.process.start_ns, now_ns))
