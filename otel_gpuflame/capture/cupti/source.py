"""What the GPU side of all targets says: finds their regions, has them record, and reads them.

A window lasts from `begin` to `finish`, or to the end that `begin` was told, in all processes that have or get a region
meanwhile. Between windows libraries are dormant.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.cupti import messages
from otel_gpuflame.capture.cupti.clients import Change, Clients
from otel_gpuflame.capture.cupti.clock import clock_offset_ns
from otel_gpuflame.capture.cupti.cost import SHORTEST_NS
from otel_gpuflame.capture.cupti.counts import MALFORMED_READ, SEEN, Counts
from otel_gpuflame.capture.cupti.errors import (
    InUseError,
    MalformedError,
    NotOursError,
    OtherVersionError,
    RegionError,
)
from otel_gpuflame.capture.cupti.find import open_region, region_descriptors
from otel_gpuflame.capture.cupti.inject import START_VARIABLE
from otel_gpuflame.capture.cupti.intake import Intake, Pump
from otel_gpuflame.capture.cupti.lease import FOREVER
from otel_gpuflame.capture.cupti.region import Region
from otel_gpuflame.capture.cupti.regions import MAX_REGIONS, Regions
from otel_gpuflame.capture.cupti.session import MAX_MALFORMED, Session
from otel_gpuflame.capture.describe.environment import read_environment
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Event, LossCount
from otel_gpuflame.events.wire_gpu import LibraryState
from otel_gpuflame.symbolize.start_time import start_monotonic_ns

logger = logging.getLogger(__name__)

_MS: Final = 1_000_000
_LOOK_AGAIN_NS: Final = tuple(ms * _MS for ms in (0, 2, 5, 10, 20, 50, 100, 200, 500))
"""After a process was born or mapped code: the library makes its region within 0.1 ms of being loaded."""
_LOOK_EVERY_NS: Final = 2_000 * _MS
"""Afterwards. A look takes about 2 µs a descriptor."""
_MAX_LOOKS: Final = 64
"""In one round."""
_MAX_CANDIDATES: Final = 4
"""Looked at of each process in one look. Honest ones have one."""
_MAX_TOLD: Final = 1 << 10
_MAX_CLIENTS: Final = 1 << 12
"""Processes without a region whose calls of CUPTI are kept."""


@dataclass(slots=True)
class _Search:
    """What is known of a process that may get a region, or another one."""

    due_ns: int
    looks: int = 0
    failures: int = 0
    """Looks that found a region which cannot be one. A process with too many is left alone."""
    is_recorded: bool | None = None
    """Whether a recorder has started it; None: not asked yet."""


class GpuSource:
    """Regions of all targets. Never raises for what a target does, and never blocks.

    `yields`: programs that a recorder has started are left to it, since one exporter at a time reads a region.
    `prepare` is called with a pid before its first lease: from then on, calls of CUPTI there must be seen.
    """

    def __init__(
        self,
        readable: Callable[[str], str],
        proc: Path = Path("/proc"),
        devices: HostDevices | None = None,
        *,
        prepare: Callable[[int], None] = lambda _pid: None,
        yields: bool = False,
    ) -> None:
        self._readable = readable
        self._prepare = prepare
        self._yields = yields
        self._proc = proc
        self._devices = devices or HostDevices()
        self._regions: dict[int, Regions] = {}
        self._searches: dict[int, _Search] = {}
        self._keys: dict[int, ProcessKey] = {}
        self._clients: dict[int, Clients] = {}
        self._left: Counts = Counter()
        """Counts of sessions that are over."""
        self._told: set[object] = set()
        self._is_on = False
        self._begun_ns: int | None = None
        self._until_ns = FOREVER
        self._waiting: list[Event] = []
        self._pump: Pump | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no process has an open window."""
        return not any(regions.is_open for regions in self._regions.values())

    def start(self) -> None:
        """Take records out of rings from now on, also while nobody calls `step`."""
        self._pump = Pump(self._intakes, time.monotonic_ns)
        self._pump.start()

    def begin(self, now_ns: int, until_ns: int = FOREVER) -> None:
        """Have all processes record, those that come later too, until `until_ns`: they stop by themselves."""
        self._is_on = True
        self._begun_ns, self._until_ns = now_ns, until_ns
        for intake in self._intakes():
            intake.begin(now_ns, until_ns)

    def finish(self) -> None:
        """Have all processes stop. Their last records come within a second: see `is_idle`."""
        self._is_on = False
        for intake in self._intakes():
            intake.end()

    def close(self, now_ns: int, reason: str = "not_flushed") -> list[Event]:
        """Let go of everything: what is left, then ends of all windows. Safe to call twice."""
        if self._pump is not None:
            self._pump.stop()
            self._pump = None
        events: list[Event] = []
        for pid in tuple(self._regions):
            events += self._end(pid, now_ns, reason)
        return events

    def know(self, process: ProcessKey) -> None:
        """The pid of `process` means it, from now on."""
        self._keys[process.tgid] = process
        regions = self._regions.get(process.tgid)
        if regions is not None and not regions.know(process):
            # Of a former process with that pid, whose end was not reported.
            self._waiting += self._end(process.tgid, time.monotonic_ns(), "process_ended")

    def forget(self, process: ProcessKey) -> None:
        """The process has ended, and its pid may mean another one soon."""
        if self._keys.get(process.tgid, process) == process:
            self._keys.pop(process.tgid, None)
            self._clients.pop(process.tgid, None)

    def observe(self, rows: CallArray) -> None:
        """Calls of CUPTI that probes have seen (`Kind.CUPTI`), in any process."""
        for pid in np.unique(rows["tgid"]).tolist():
            if pid in self._clients or len(self._clients) < _MAX_CLIENTS:
                self._clients.setdefault(pid, Clients()).add(rows[rows["tgid"] == pid])

    def follow(self, change: ProcessChange, now_ns: int) -> None:
        """BPF has reported that a process was born, replaced its program or mapped code: it may have a region soon."""
        if change.change is wire.ProcessChange.EXIT:
            return
        pid = change.process.tgid
        if change.change is wire.ProcessChange.EXEC:
            # The region of the program before is no longer written to.
            self._waiting += self._end(pid, now_ns, "process_ended")
            self._searches.pop(pid, None)
            self._clients.pop(pid, None)
        self.know(change.process)
        search = self._searches.get(pid)
        if search is not None:
            search.due_ns, search.looks = now_ns, 0

    def look(self, pids: Collection[int], now_ns: int) -> None:
        """Follow the processes: these live, others are gone."""
        living = set(pids)
        for pid in self._regions.keys() - living:
            self._waiting += self._end(pid, now_ns, "process_ended")
        for gone in self._searches.keys() - living:
            del self._searches[gone]
        for pid in living - self._searches.keys():
            self._searches[pid] = _Search(now_ns)
        due = [pid for pid, search in self._searches.items() if search.due_ns <= now_ns]
        for pid in sorted(due, key=lambda pid: self._searches[pid].due_ns)[:_MAX_LOOKS]:
            self._look_at(pid, now_ns)

    def next_look_ns(self) -> int | None:
        """When a process is due to be looked at soon after it has changed; None where none is."""
        soon = [s.due_ns for s in self._searches.values() if s.looks < len(_LOOK_AGAIN_NS)]
        return min(soon, default=None)

    def step(self, now_ns: int) -> list[Event]:
        """What all processes have written since: of each process devices and names before rows that use them."""
        events, self._waiting = self._waiting, []
        for pid, regions in tuple(self._regions.items()):
            events += regions.poll(now_ns)
            for session in regions.sessions:
                self._tell_unusable(session)
            self._mind_others(pid, regions, now_ns)
            if regions.has_failed:
                events += self._end(pid, now_ns, "malformed")
        return events

    def records(self) -> dict[int, int]:
        """How many records each process with a region has made since that was found, by pid."""
        return {pid: regions.totals()[SEEN] for pid, regions in self._regions.items()}

    def counters(self) -> list[LossCount]:
        """Totals since the start, see `counts`."""
        totals = Counter(self._left)
        for regions in self._regions.values():
            totals += regions.totals()
        return [LossCount(*name, count) for name, count in sorted(totals.items())]

    def _intakes(self) -> list[Intake]:
        return [each for regions in tuple(self._regions.values()) for each in regions.intakes]

    def _look_at(self, pid: int, now_ns: int) -> None:
        search = self._searches[pid]
        search.looks += 1
        quick = search.looks < len(_LOOK_AGAIN_NS)
        search.due_ns = now_ns + (_LOOK_AGAIN_NS[search.looks] if quick else _LOOK_EVERY_NS)
        regions = self._regions.get(pid)
        if search.failures >= MAX_MALFORMED or (regions and regions.count == MAX_REGIONS):
            return
        try:
            for path in islice(region_descriptors(pid, self._proc), _MAX_CANDIDATES):
                if self._is_recorded(pid, search) or self._open(path, pid, search, now_ns):
                    return
        except OSError as error:
            self._tell_refused("looked for", pid, error)

    def _is_recorded(self, pid: int, search: _Search) -> bool:
        """Whether a recorder has started the program: that waits for it from its first call on."""
        if self._yields and search.is_recorded is None:
            variables = read_environment(pid, self._proc)
            search.is_recorded = variables.get(START_VARIABLE) == "1"
        return bool(search.is_recorded)

    def _open(self, path: str, pid: int, search: _Search, now_ns: int) -> bool:
        """Whether that is all there is to this look: what was found is one more region, whatever becomes of it."""
        known = {inode for regions in self._regions.values() for inode in regions.inodes}
        try:
            region = Region(open_region(path, pid, self._proc, known))
            if region.heads().state == LibraryState.STARTING:
                # It may not have loaded CUPTI yet.
                region.close()
            else:
                self._prepare(pid)
                self._start(region, pid, now_ns)
        except NotOursError:
            return False
        except InUseError:
            text = f"process {pid}: another exporter reads its GPU times: stop that one"
            self._tell("in use", text)
        except RegionError as error:
            self._note_failure(error, pid, search)
        except (FileNotFoundError, ProcessLookupError):
            # Ended meanwhile, or the descriptor was closed.
            return False
        except OSError as error:
            self._tell_refused("read", pid, error)
        return True

    def _start(self, region: Region, pid: int, now_ns: int) -> None:
        process = self._keys.get(pid)
        regions = self._regions.get(pid)
        session = Session(
            region,
            process or ProcessKey(pid, start_monotonic_ns(pid, self._proc) or 0),
            self._devices,
            self._readable,
            is_known=process is not None,
            clock_offset_ns=clock_offset_ns(pid, self._proc),
            since_ns=self._begun_ns if self._is_on else None,
            number=0 if regions is None else regions.count,
        )
        if regions is None:
            self._regions[pid] = Regions(session)
        else:
            regions.add(session)
        if self._is_on and now_ns + SHORTEST_NS <= self._until_ns:
            session.intake.begin(now_ns, self._until_ns)

    def _end(self, pid: int, now_ns: int, reason: str) -> list[Event]:
        regions = self._regions.pop(pid, None)
        if regions is None:
            return []
        self._searches.pop(pid, None)
        if regions.has_failed:
            self._searches[pid] = _Search(now_ns, failures=MAX_MALFORMED)
        events = regions.end(now_ns, reason)
        self._left += regions.totals()
        for session in regions.sessions:
            self._devices.forget(session.process)
        return events

    def _note_failure(self, error: RegionError, pid: int, search: _Search) -> None:
        if isinstance(error, OtherVersionError):
            search.failures = MAX_MALFORMED
            self._tell(
                "version",
                f"process {pid}: its GPU times cannot be read: {error}: restart it with the library of this version "
                "(otel-gpuflame env)",
            )
            return
        search.failures += 1
        if isinstance(error, MalformedError) or search.failures == MAX_MALFORMED:
            self._left[MALFORMED_READ] += 1
        if search.failures == MAX_MALFORMED:
            self._tell(pid, f"process {pid}: its GPU times are left alone: {error}")

    def _tell_unusable(self, session: Session) -> None:
        if session.unusable is not None:
            text = messages.unusable(*session.unusable)
            self._tell(
                ("unusable", session.unusable),
                f"process {session.process.tgid}: no GPU times: {text}",
            )

    def _mind_others(self, pid: int, regions: Regions, now_ns: int) -> None:
        change = regions.mind(self._clients.setdefault(pid, Clients()), now_ns)
        if change is Change.BEGAN:
            self._tell(("others", pid), f"process {pid}: {messages.OTHERS_AT_WORK}")
        elif change is Change.ENDED:
            logger.info("process %d: no other profiler uses CUPTI any more", pid)

    def _tell_refused(self, what: str, pid: int, error: OSError) -> None:
        is_full = error.errno in (errno.EMFILE, errno.ENFILE)
        remedy = "raise ulimit -n" if is_full else "run as root, or give CAP_SYS_PTRACE"
        text = f"process {pid}: its GPU times cannot be {what}: {error.strerror}: {remedy}"
        self._tell(("refused", error.errno), text)

    def _tell(self, key: object, text: str) -> None:
        """Say it once."""
        if key not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(key)
            logger.warning("%s", text)
