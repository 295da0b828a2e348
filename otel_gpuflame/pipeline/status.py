"""What the agent has done so far: written by the thread that captures, read by any other as a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_gpuflame.export.agent_snapshot import (
    CaptureSnapshot,
    EventKey,
    ProcessOverhead,
    ServiceTotals,
)
from otel_gpuflame.profile.ledger import EVENT_KINDS, LINKED, LOSSES, Account, Ledger
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_COPY,
    GPU_LAUNCH,
    GPU_QUEUE,
    GPU_TIME,
    GPU_WAIT,
)

MAX_SERVICES: Final = 200
"""Services with metrics of their own; each costs a backend nine time series."""
OTHER_SERVICES: Final = "other"
MAX_OVERHEADS: Final = 200
"""Processes with a metric of their own: those that capture costs most."""
PUBLISH_EVERY_NS: Final = 1_000_000_000

_REMAINDERS: Final = ("unreadable", "cut")
"""Ends of the names of what symbolisation counts: `python_frames_unreadable`. Others count what was resolved."""


@dataclass(slots=True)
class _Service:
    """Running totals by (sample type, whether estimated)."""

    totals: Counter[tuple[str, bool]] = field(default_factory=Counter)

    def frozen(self, service: str) -> ServiceTotals:
        return ServiceTotals(
            service=service,
            wait_ns=self.totals[GPU_WAIT.type, False],
            estimated_wait_ns=self.totals[GPU_WAIT.type, True],
            launches=self.totals[GPU_LAUNCH.type, False],
            estimated_launches=self.totals[GPU_LAUNCH.type, True],
            copied_bytes=self.totals[GPU_COPY.type, False],
            estimated_copied_bytes=self.totals[GPU_COPY.type, True],
            executed_ns=self.totals[GPU_TIME.type, False],
            estimated_executed_ns=self.totals[GPU_TIME.type, True],
            queued_ns=self.totals[GPU_QUEUE.type, False],
            estimated_queued_ns=self.totals[GPU_QUEUE.type, True],
        )


class AgentStatus:
    """Everything but `snapshot` belongs to the capture thread.

    Reading takes no lock: `publish` makes a new copy, and replacing a reference cannot be seen half done.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._earlier: Counter[EventKey] = Counter()
        self._earlier_remarks: Counter[str] = Counter()
        self._named: set[str] = set()
        self._services: dict[str, _Service] = {}
        self._overflowed = 0
        self._due_ns = 0
        self._published = CaptureSnapshot()

    @property
    def snapshot(self) -> CaptureSnapshot:
        """What was published last. From any thread."""
        return self._published

    def begin(self, ledger: Ledger) -> None:
        """A stretch of capture begins, with books of its own; those before it are closed."""
        self._earlier = _events(self._ledger, self._earlier, is_over=True)
        self._earlier_remarks += self._ledger.remarks
        self._ledger = ledger

    def add(self, bundle: Bundle) -> None:
        """Count what a bundle holds."""
        own_name = str(dict(bundle.resource).get("service.name", "unknown_service"))
        name = self.label(own_name)
        if name != own_name:
            self._overflowed += sum(1 for profile in bundle.profiles if len(profile.value))
        service = self._services.setdefault(name, _Service())
        is_estimated = bundle.scope == ESTIMATED_SCOPE
        for profile in bundle.profiles:
            service.totals[profile.sample_type.type, is_estimated] += profile.total

    def label(self, service: str) -> str:
        """What metrics that are kept for good call a service: its name, as long as there is room for one more.

        The SDK never lets go of a combination of attributes, and hosts of short jobs have new names every day.
        """
        if service not in self._named and len(self._named) >= MAX_SERVICES:
            return OTHER_SERVICES
        self._named.add(service)
        return service

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time to publish, once a second; asking makes it the next second's turn."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + PUBLISH_EVERY_NS
        return True

    def publish(
        self,
        *,
        targets: int = 0,
        is_capturing: bool = False,
        duty: float = 0.0,
        switch_ns: float = 0.0,
        overheads: Mapping[int, tuple[str, float]] | None = None,
    ) -> None:
        """Copy everything for `snapshot`. `overheads`: service and share by pid. Without arguments: capture is over."""
        is_over = not is_capturing
        worst = sorted((overheads or {}).items(), key=lambda item: -item[1][1])[:MAX_OVERHEADS]
        pending = {account.kind: account.pending for account in self._ledger.accounts()}
        self._published = CaptureSnapshot(
            events=tuple(sorted(_events(self._ledger, self._earlier, is_over=is_over).items())),
            pending=() if is_over else tuple(pending.items()),
            remarks=tuple(sorted((self._ledger.remarks + self._earlier_remarks).items())),
            services=tuple(service.frozen(name) for name, service in self._services.items()),
            overflowed_profiles=self._overflowed,
            targets=targets,
            is_capturing=is_capturing,
            duty=duty,
            switch_ns=switch_ns,
            overheads=tuple(ProcessOverhead(pid, *rest) for pid, rest in worst),
        )


def _events(ledger: Ledger, earlier: Counter[EventKey], *, is_over: bool) -> Counter[EventKey]:
    """`earlier` with the events of `ledger`; where its capture is over, nothing of it is pending any more."""
    events = earlier.copy()
    for account in ledger.accounts():
        events.update(dict(_account_events(account)))
        if is_over and account.pending:
            events[EventKey("source", account.kind, "left_out", "capture_ended")] += account.pending
    for (kind, reason), count in ledger.links.items():
        events[_link_key(kind, reason)] += count
    for (kind, outcome), count in ledger.source.items():
        if kind not in EVENT_KINDS:
            events[_source_key(kind, outcome)] += count
    return events


def _account_events(account: Account) -> Iterator[tuple[EventKey, int]]:
    """What was seen is profiled, lost, nested, left out or pending."""
    yield EventKey("source", account.kind, "seen"), account.seen
    yield EventKey("profile", account.kind, "profiled"), account.profiled
    for reason, count in account.dropped:
        if reason in LOSSES:
            yield EventKey("source", account.kind, "lost", reason), count
        elif reason == "nested":
            yield EventKey("source", account.kind, "nested"), count
        else:
            yield EventKey("profile", account.kind, "left_out", reason), count


def _link_key(kind: str, reason: str) -> EventKey:
    is_linked = reason == LINKED
    return EventKey("link", kind, LINKED if is_linked else "unlinked", "" if is_linked else reason)


def _source_key(kind: str, outcome: str) -> EventKey:
    if kind == "symbolize":
        for end in _REMAINDERS:
            if outcome.endswith(f"_{end}"):
                return EventKey("symbolize", outcome.removesuffix(f"_{end}"), end)
        return EventKey("symbolize", outcome, "resolved")
    # Nothing is missing where a stack had to be walked.
    if outcome in ("seen", "sent") or kind == "walk":
        return EventKey("source", kind, outcome)
    return EventKey("source", kind, "lost", outcome)
