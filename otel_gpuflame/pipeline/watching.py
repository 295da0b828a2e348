"""Capture on the whole host for a live table: as the agent does it, but nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.capture.calibrate import trap_cost_ns
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.windows import BudgetOptions, BudgetState
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events.records import Event, SamplingWindow, Watermark
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.rates import ProcessRates, Rates

_STEP_NS: Final = 100_000_000
_DRAIN_POLL_NS: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How often to look, and what that may cost targets."""

    interval_ns: int
    budget: float = 0.01
    duty: float | None = None
    settle: bool = False
    """Hold the first view back until launches are known, which takes one stratum of sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """One interval of the host. `lost` are calls that were seen in it and did not arrive."""

    end_unix_ns: int
    interval_ns: int
    duty: float
    lost: int
    targets: int
    rows: tuple[ProcessRates, ...]
    overheads: dict[int, float]
    """Estimated share of throughput by pid."""
    is_settled: bool
    """Whether launches are known already."""


def watch(options: WatchOptions, stopped: Callable[[], bool]) -> Iterator[HostView]:
    """A view for each interval, until `stopped()`.

    Raises SourceUnavailable when the host cannot capture, TargetError when the kill switch ends it.
    """
    budget = BudgetOptions(options.budget, options.duty, trap_cost_ns())
    live_options = LiveOptions(host_wide=True, budget=budget, poll_ns=_DRAIN_POLL_NS)
    with LiveCapture(live_options) as live:
        watcher = _Watcher(options, live)
        while not stopped():
            for event in live.step(_STEP_NS):
                watcher.take(event)
            view = watcher.view()
            if view is not None:
                yield view


class _Watcher:
    """Events in, views out. Windows of the aggregator are the intervals of the table."""

    def __init__(self, options: WatchOptions, live: LiveCapture) -> None:
        self._options = options
        self._live = live
        self._aggregator = Aggregator(
            AggregateOptions(window_ns=options.interval_ns, span_link=None, sampled=True)
        )
        start = live.start_event()
        self._aggregator.feed(start)
        self._offset_ns = start.unix_offset_ns
        self._rates = Rates(start.unix_offset_ns)
        self._edge_ns = start.time_ns + options.interval_ns
        self._ended_ns: int | None = None
        """End of the interval that is to be shown."""
        self._lost = 0

    def take(self, event: Event) -> None:
        """Account for one event."""
        bundles = self._aggregator.feed(event)
        if isinstance(event, SamplingWindow):
            self._rates.open_window(event)
        if not isinstance(event, Watermark):
            return
        self._rates.add_estimates(bundles, event.time_ns)
        if event.time_ns >= self._edge_ns:
            passed = (event.time_ns - self._edge_ns) // self._options.interval_ns
            self._ended_ns = self._edge_ns + passed * self._options.interval_ns
            self._edge_ns = self._ended_ns + self._options.interval_ns
            end_unix_ns = self._ended_ns + self._offset_ns
            self._rates.close_interval(b for b in bundles if b.window.end_unix_ns == end_unix_ns)

    def view(self) -> HostView | None:
        """The interval that has ended since the last view, if one has."""
        state = self._live.budget_state or BudgetState()
        if state.killed:
            raise TargetError(
                "the kill switch has ended capture: probes cost a target more than twice the budget; "
                "see --budget, or look at one process with `record --pid`"
            )
        is_settled = self._rates.is_settled or not self._live.attachments.libraries
        if self._ended_ns is None or (self._options.settle and not is_settled):
            return None
        ended_ns, self._ended_ns = self._ended_ns, None
        targets = self._live.targets
        pids = targets.pids()
        return HostView(
            end_unix_ns=ended_ns + self._offset_ns,
            interval_ns=self._options.interval_ns,
            duty=state.duty,
            lost=self._new_losses(),
            targets=len(pids),
            rows=tuple(self._rates.rows((pid, targets.service_name(pid)) for pid in pids)),
            overheads={pid: state.overhead(pid) for pid in state.costs},
            is_settled=is_settled,
        )

    def _new_losses(self) -> int:
        lost = sum(account.lost for account in self._aggregator.ledger.accounts())
        new, self._lost = lost - self._lost, lost
        return new
