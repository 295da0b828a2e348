"""Takes records out of a ring in time, whatever the rest of the exporter is doing.

At 480,000 kernels/s a ring lasts for a quarter of a second, and a round of the exporter can take longer than that
(symbols of large libraries). So a thread copies records out and keeps leases running; nothing is looked at there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.capture.cupti.errors import MalformedError
from otel_gpuflame.capture.cupti.lease import FOREVER, Lease
from otel_gpuflame.capture.cupti.region import Heads, RecordArray, Region
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryState

_RINGS: Final = 4
"""So many fillings of a ring wait at the most: 48 MiB of a process. When there is no room, the ring fills, which the
library counts, and the lease is not prolonged."""
_PAUSE_S: Final = 0.02
_IDLE_PAUSE_S: Final = 0.2
"""Where nobody records. A window that begins meanwhile has not filled its ring by then."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What has come since the last time. All records that `heads` speaks of are in `batches`, or were before.

    `fault` says what was wrong with the heads, empty: nothing was.
    """

    heads: Heads
    batches: list[RecordArray]
    fault: str


class Intake:
    """Of one region, which it owns. May be used from several threads.

    A window that the library opened by itself is read from its first record if nobody has read it yet, and it is still
    open or was opened after `since_ns`.
    """

    def __init__(
        self, region: Region, clock_offset_ns: int = 0, since_ns: int | None = None
    ) -> None:
        self.region = region
        self._lock = threading.Lock()
        self._lease = Lease(region, clock_offset_ns)
        self._limit = _RINGS * region.layout.record_slots
        self._heads = region.heads()
        self._tail = _first_record(region, self._heads, clock_offset_ns, since_ns)
        self.is_whole = self._tail == 0
        """Whether everything that the library has ever written is read."""
        self._lease.give_back(self._tail)
        self._lease.forget_others()
        self._batches: list[RecordArray] = []
        self._waiting = 0
        self._fault = ""
        self._is_closed = False

    @property
    def is_leased(self) -> bool:
        """Whether the library has been told to record, and may still do so."""
        return self._lease.is_running

    def begin(self, now_ns: int, until_ns: int = FOREVER) -> None:
        """Have the library open a window, and close it at `until_ns`."""
        with self._lock:
            if not self._is_closed:
                self._lease.begin(now_ns, until_ns)

    def end(self) -> None:
        """Have the library close it."""
        with self._lock:
            if not self._is_closed:
                self._lease.end()

    def others_begin(self) -> None:
        """Another client of CUPTI is at work: have the library keep away from it."""
        with self._lock:
            if not self._is_closed:
                self._lease.others_begin()

    def others_end(self, now_ns: int) -> None:
        """It has ended: have the library open a window again, if it should have one."""
        with self._lock:
            if not self._is_closed:
                self._lease.others_end(now_ns)

    @property
    def is_displaced(self) -> bool:
        """Whether the library would record for the present lease, but for another client of CUPTI."""
        with self._lock:
            return (
                self._lease.is_running
                and self._heads.state == LibraryState.STANDING_DOWN
                and self._heads.generation == self._lease.generation
            )

    def pump(self, now_ns: int) -> int:
        """Copy what is in the ring, if there is room, and prolong the lease; how many records wait."""
        with self._lock:
            if not self._is_closed and not self._fault and self._waiting < self._limit:
                self._lease.keep(now_ns)
                self._copy()
            return self._waiting

    def take(self) -> Taken:
        """Everything that waits."""
        with self._lock:
            taken = Taken(self._heads, self._batches, self._fault)
            self._batches, self._waiting, self._fault = [], 0, ""
            return taken

    def close(self) -> None:
        """End the lease, and let go of the region. Safe to call twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._lease.end()
                self.region.close()

    def _copy(self) -> None:
        heads = self.region.heads()
        try:
            records = self.region.records(self._tail, heads.records_head)
        except MalformedError as error:
            self._fault = str(error)
            return
        self._heads = heads
        if len(records):
            self._tail = heads.records_head
            self._lease.give_back(self._tail)
            self._batches.append(records)
            self._waiting += len(records)


def _first_record(region: Region, heads: Heads, clock_offset_ns: int, since_ns: int | None) -> int:
    """Where to begin. What an earlier exporter has left behind, or a window before our time, is of no use."""
    head = heads.records_head
    if not region.is_untouched or not 0 < head <= region.layout.record_slots:
        return head
    if heads.state == LibraryState.CAPTURING:
        return 0
    first = region.records(0, 1)[0]
    is_ours = since_ns is not None and int(first["start_ns"]) >= since_ns + clock_offset_ns
    return 0 if is_ours and first["kind"] == GpuKind.WINDOW_OPEN else head


class Pump:
    """The thread: pumps all that `intakes` gives."""

    def __init__(self, intakes: Callable[[], Iterable[Intake]], clock: Callable[[], int]) -> None:
        self._intakes = intakes
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="otel-gpuflame-executions", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within a pause."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _PAUSE_S
        while not self._stop.wait(pause_s):
            intakes = tuple(self._intakes())
            for intake in intakes:
                intake.pump(self._clock())
            is_busy = any(intake.is_leased for intake in intakes)
            pause_s = _PAUSE_S if is_busy else _IDLE_PAUSE_S
