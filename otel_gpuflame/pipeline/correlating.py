"""Both sides of the GPU in one place: events are correlated, then aggregated, and the books of both are one."""

from __future__ import annotations

from collections.abc import Mapping

from otel_gpuflame.correlate.gpu.captured import CapturedLaunches
from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.correlate.gpu.counts import JoinCounts
from otel_gpuflame.correlate.gpu.graph_nodes import GraphNodes
from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.events.records import Event
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.device_faults import DeviceFault, DeviceFaults
from otel_gpuflame.profile.device_use import DeviceUse, DeviceUses
from otel_gpuflame.profile.execution_strata import LEFT_OUT
from otel_gpuflame.profile.ledger import CAPTURED, EXECUTION_KIND, Ledger
from otel_gpuflame.profile.model import Bundle


class CorrelatingAggregator:
    """An `Aggregator` that gets what executions say besides."""

    def __init__(self, options: AggregateOptions | None = None) -> None:
        self._nodes = GraphNodes()
        self._captured = CapturedLaunches(self._nodes)
        self._inferred = InferredLaunches()
        self._correlator = GpuCorrelator(nodes=self._nodes)
        self._aggregator = Aggregator(options)
        self._device_uses = DeviceUses()
        self._device_faults = DeviceFaults()

    @property
    def ledger(self) -> Ledger:
        """What became of every event so far."""
        self.keep_books()
        return self._aggregator.ledger

    def keep_books(self) -> None:
        """Enter into the ledger what became of executions until now."""
        held = self._aggregator.executions_held
        note_executions(self._aggregator.ledger, self._correlator.counts, held)
        note_inferred(self._aggregator.ledger, self._inferred.counts)
        note_captured(self._aggregator.ledger, self._captured, self._nodes.estimated)

    @property
    def devices(self) -> tuple[DeviceUse, ...]:
        """What devices' own counters have said so far."""
        return self._device_uses.uses()

    @property
    def faults(self) -> tuple[DeviceFault, ...]:
        """Errors of devices so far."""
        return self._device_faults.faults()

    def feed(self, event: Event) -> list[Bundle]:
        """Take in one event; bundles of windows that it closed, oldest first."""
        self._device_uses.feed(event)
        self._device_faults.feed(event)
        events = [
            each for given in self._captured.feed(event) for each in self._inferred.feed(given)
        ]
        return self._aggregated(self._correlated(events))

    def finish(self) -> list[Bundle]:
        """Close every window."""
        self._captured.finish()
        events = self._correlated(self._inferred.finish()) + self._correlator.finish()
        return self._aggregated(events) + self._aggregator.finish()

    def _correlated(self, events: list[Event]) -> list[Event]:
        return [each for event in events for each in self._correlator.feed(event)]

    def _aggregated(self, events: list[Event]) -> list[Bundle]:
        return [bundle for event in events for bundle in self._aggregator.feed(event)]


def note_inferred(ledger: Ledger, counts: Mapping[str, int]) -> None:
    """What the order of calls has told."""
    texts = {
        "inferred": "launches that CUPTI did not record, found by the order of calls",
        "without_execution": "launches without an execution: captured into a graph, or not recorded",
        "ambiguous": "executions that could be of more than one launch by the order of calls, or of none",
        "evicted": "launches or executions that waited for each other too long",
    }
    for name, text in texts.items():
        if counts.get(name):
            ledger.remarks[text] = counts[name]


def note_captured(ledger: Ledger, captured: CapturedLaunches, estimated: int) -> None:
    """What was captured into graphs is no work; what became of it."""
    for kind, count in captured.captured.items():
        ledger.dropped[kind, CAPTURED] = count
    texts = {
        "unmatched": "graphs that run other kernels than any capture that was seen",
        "ambiguous": "graphs that run the kernels of several captures",
        "failed": "captures in which the program waited for the stream: launches before that count as captured",
        "evicted": "captured launches forgotten, since there were too many",
    }
    remarks = {text: captured.counts[name] for name, text in texts.items()}
    remarks["executions shown under a captured launch, by the order of kernels (estimated)"] = (
        estimated
    )
    for text, count in remarks.items():
        if count:
            ledger.remarks[text] = count


def note_executions(ledger: Ledger, counts: JoinCounts, held: int = 0) -> None:
    """Put the books of the join into the ledger. `held` executions are attributed, and in no profile yet."""
    of_windows = sum(ledger.dropped[EXECUTION_KIND, reason] for reason in LEFT_OUT)
    profiled = counts.attributed - held - of_windows
    ledger.take_executions(counts.seen, profiled, counts.dropped)
    for reason, count in counts.without_launch.items():
        name = reason.name.lower().replace("_", " ")
        ledger.remarks[f"executions without a stack: {name}"] = count
    for left_out, count in counts.dropped.items():
        ledger.remarks[f"executions left out: {left_out.replace('_', ' ')}"] = count
    for uncertain, count in counts.uncertain.items():
        ledger.remarks[f"uncertain: {uncertain}"] = count
    remarks = {
        "executions that came late: no wait or idle time is explained by them": counts.late,
        "launches forgotten, since too many waited for their executions": counts.launches_evicted,
        "times that too much waited to be correlated": counts.forced,
    }
    for text, count in remarks.items():
        if count:
            ledger.remarks[text] = count
