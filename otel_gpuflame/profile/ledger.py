"""The books: whatever a source has seen is exported, pending, or dropped for a reason. Exact, in events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_gpuflame.events.records import SourceCounters
from otel_gpuflame.events.wire import Kind, Outcome

SOURCE_DROPS = tuple(
    outcome.name.lower() for outcome in Outcome if outcome not in (Outcome.SEEN, Outcome.SENT)
)
_EXECUTION_DROPS = ("cupti_dropped", "malformed")
"""Records that the driver's profiling interface did not give, or that were none."""
IMPOSSIBLE = "impossible_time"
"""Read from a file, at a time that its capture cannot have."""
LOSSES = (
    *(reason for reason in SOURCE_DROPS if reason != Outcome.NESTED.name.lower()),
    *_EXECUTION_DROPS,
    IMPOSSIBLE,
)
"""Reasons for which a call is missing; a nested one is covered by the call around it."""

CAPTURED = "captured"
"""Left out, since it was captured into a graph: the device was given nothing to do."""

LINKED = "linked"
NO_SPAN = "no_span"
NOT_SAMPLED = "not_sampled"
TOO_MANY = "too_many"
"""Why an event has no link: none was published, no trace is stored, or its process has too many in a window."""

CALL_KINDS = tuple(kind.name.lower() for kind in Kind if Kind.LAUNCH <= kind <= Kind.FREE)
"""Calls of the driver library."""
THREAD_KINDS = tuple(kind.name.lower() for kind in (Kind.CPU_SAMPLE, Kind.OFF_CPU, Kind.DRIVER))
EXECUTION_KIND = "execution"
"""What devices did."""
_OF_EXECUTIONS = (*SOURCE_DROPS, *_EXECUTION_DROPS)
EVENT_KINDS = (*CALL_KINDS, *THREAD_KINDS, EXECUTION_KIND)
"""Everything that has an account."""


@dataclass(frozen=True, slots=True)
class Account:
    """One kind of event. seen = profiled + sum(dropped) + pending, always.

    `pending` are calls inside the driver, or on their way; it is 0 for captures without source counters.
    """

    kind: str
    seen: int
    profiled: int
    dropped: tuple[tuple[str, int], ...]
    pending: int

    @property
    def lost(self) -> int:
        """Dropped for any reason but being part of another call."""
        return sum(count for reason, count in self.dropped if reason in LOSSES)


@dataclass(slots=True)
class Ledger:
    """Counts of one capture. Late, stackless and inverted events are profiled: they are remarks, not drops."""

    profiled: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, reason): what arrived and was left out on purpose."""
    remarks: Counter[str] = field(default_factory=Counter)
    links: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, outcome): calls and executions that were found to be of a span, LINKED, and why others are not."""
    source: dict[tuple[str, str], int] = field(default_factory=dict)

    def take_source(self, counters: SourceCounters) -> None:
        """Running totals of the source replace earlier ones."""
        for count in counters.counts:
            self.source[count.kind, count.outcome] = count.count

    def take_executions(self, seen: int, profiled: int, dropped: Mapping[str, int]) -> None:
        """Running totals of the correlation replace earlier ones. What the source lost was seen there only."""
        lost = sum(self.source_count(EXECUTION_KIND, reason) for reason in _OF_EXECUTIONS)
        self.source[EXECUTION_KIND, "seen"] = seen + lost
        self.profiled[EXECUTION_KIND] = profiled
        for reason, count in dropped.items():
            self.dropped[EXECUTION_KIND, reason] = count

    def accounts(self) -> tuple[Account, ...]:
        """One row for each kind of event that occurred."""
        rows = []
        for kind in EVENT_KINDS:
            reasons_at_source = _OF_EXECUTIONS if kind == EXECUTION_KIND else SOURCE_DROPS
            dropped = Counter({o: self.source.get((kind, o), 0) for o in reasons_at_source})
            for (dropped_kind, reason), count in self.dropped.items():
                if dropped_kind == kind:
                    dropped[reason] += count
            profiled = self.profiled[kind]
            # A capture that was cut off has calls from after the last counters.
            seen = max(self.source.get((kind, "seen"), 0), profiled + dropped.total())
            if seen:
                reasons = tuple(sorted((r, n) for r, n in dropped.items() if n))
                pending = seen - profiled - dropped.total()
                rows.append(Account(kind, seen, profiled, reasons, pending))
        return tuple(rows)

    def source_count(self, kind: str, outcome: str) -> int:
        """A running total of the source, 0 if it never occurred."""
        return self.source.get((kind, outcome), 0)
