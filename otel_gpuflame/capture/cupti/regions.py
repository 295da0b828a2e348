"""All regions of one process, its CUDA library's and its OpenCL layer's, as one interval of executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from otel_gpuflame.capture.cupti.clients import Change, Clients
from otel_gpuflame.capture.cupti.counts import Counts
from otel_gpuflame.capture.cupti.intake import Intake
from otel_gpuflame.capture.cupti.session import Session
from otel_gpuflame.events.executions import ExecutionsBegin, ExecutionsEnd, ExecutionWatermark
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event

MAX_REGIONS: Final = 2
"""Of a process: one for each of our libraries. Their ids have one bit in which they differ."""


@dataclass(slots=True)
class _Side:
    """One region's session, and its present window."""

    session: Session
    is_open: bool = False
    has_opened: bool = False
    """Whether it has ever recorded: who never does, is not waited for."""
    begin_ns: int = 0
    complete_ns: int = 0


class Regions:
    """Sessions of one process. Everything that it gives its devices is told while all of them record that ever did."""

    def __init__(self, first: Session) -> None:
        self._sides = [_Side(first)]
        self._is_open = False
        self._told_ns = 0

    def add(self, session: Session) -> None:
        """Another one."""
        self._sides.append(_Side(session))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._sides)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """In the order in which they were found."""
        return tuple(side.session for side in self._sides)

    @property
    def process(self) -> ProcessKey:
        """Whose they are."""
        return self._sides[0].session.process

    @property
    def intakes(self) -> list[Intake]:
        """Of all."""
        return [session.intake for session in self.sessions]

    @property
    def inodes(self) -> set[int]:
        """Of all."""
        return {session.inode for session in self.sessions}

    @property
    def is_open(self) -> bool:
        """Whether one has an open window."""
        return any(session.is_open for session in self.sessions)

    @property
    def has_failed(self) -> bool:
        """Whether there is nothing more to be had from any."""
        return all(session.has_failed for session in self.sessions)

    def know(self, process: ProcessKey) -> bool:
        """Who has that pid; False: that is not the process that this is about."""
        known = [session.know(process) for session in self.sessions]
        return all(known)

    def poll(self, now_ns: int) -> list[Event]:
        """What has been written since; keeps leases running."""
        return [
            event
            for side in self._sides
            for told in side.session.poll(now_ns)
            for event in self._merged(side, told)
        ]

    def end(self, now_ns: int, reason: str) -> list[Event]:
        """The process has ended, or must not be waited for any longer: what is left, then the end."""
        return [
            event
            for side in self._sides
            for told in side.session.end(now_ns, reason)
            for event in self._merged(side, told)
        ]

    def mind(self, clients: Clients, now_ns: int) -> Change | None:
        """Have the CUDA library make way for other clients of CUPTI, and come back; what has changed."""
        living = [session for session in self.sessions if not session.has_failed]
        users = [session for session in living if session.intake.region.uses_cupti]
        chosen = next(iter(users or living), None)
        return None if chosen is None else chosen.mind(clients, now_ns)

    def totals(self) -> Counts:
        """Counts of all."""
        counts: Counts = Counter()
        for session in self.sessions:
            counts += session.totals()
        return counts

    def _merged(self, side: _Side, event: Event) -> Iterator[Event]:
        if isinstance(event, ExecutionsBegin):
            side.is_open = side.has_opened = True
            side.begin_ns = side.complete_ns = event.time_ns
            yield from self._begin(event)
        elif isinstance(event, ExecutionsEnd):
            side.is_open = False
            # What stays away for good is not waited for any more.
            side.has_opened = not side.session.has_failed
            if self._is_open:
                self._is_open = False
                yield event
        elif isinstance(event, ExecutionWatermark):
            side.complete_ns = event.time_ns
            yield from self._watermark(event)
        else:
            yield event

    def _begin(self, event: ExecutionsBegin) -> Iterator[Event]:
        if self._is_open or not all(side.is_open for side in self._sides if side.has_opened):
            return
        self._is_open = True
        last_ns = max(side.begin_ns for side in self._sides if side.is_open)
        yield replace(event, time_ns=last_ns)

    def _watermark(self, event: ExecutionWatermark) -> Iterator[Event]:
        complete_ns = min(side.complete_ns for side in self._sides if side.is_open)
        if self._is_open and complete_ns > self._told_ns:
            self._told_ns = complete_ns
            yield replace(event, time_ns=complete_ns)
