"""The books of the join: whatever became known is joined, shown without a launch, dropped for a reason, or pending."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from otel_gpuflame.events.attributions import NoLaunch


@dataclass(slots=True)
class JoinCounts:
    """Executions: seen = joined + Σ without_launch + Σ dropped + pending, always. The rest are remarks."""

    seen: int = 0
    joined: int = 0
    without_launch: Counter[NoLaunch] = field(default_factory=Counter)
    """Attributed, but to no stack."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason: `duplicate`, `zero_time`, `inverted_time`, `impossible_time`, `process_gone`, `too_many_processes`."""
    pending: int = 0
    late: int = 0
    """Came when their time had been dealt with: attributed, but they explain no wait and no idle time."""
    launches: int = 0
    """Submissions that probes saw of processes whose executions are delivered."""
    launches_without_record: int = 0
    """Of these, those of which the driver recorded nothing."""
    never_executed: int = 0
    """Launches that were recorded, and executed nothing: captured into a graph, empty, or refused by the driver."""
    records: int = 0
    """Launches that the driver recorded."""
    records_without_probe: int = 0
    records_without_time: int = 0
    launches_evicted: int = 0
    forced: int = 0
    """How often the oldest was decided before its time, because too much was waiting."""
    uncertain: Counter[str] = field(default_factory=Counter)
    """What was said although not all was known that it takes, by what was missing."""

    @property
    def attributed(self) -> int:
        """Executions whose time is in a profile."""
        return self.joined + self.without_launch.total()

    def refuse(self, count: int) -> None:
        """So many records came of processes beyond those that can be told apart."""
        if count:
            self.seen += count
            self.dropped["too_many_processes"] += count
