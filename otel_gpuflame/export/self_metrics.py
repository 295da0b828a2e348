"""What the agent tells about itself and about its targets, as OpenTelemetry metrics.

All instruments are observed: their callbacks read a copy of what is known, in the thread that exports metrics. Nothing
of this runs where calls are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_gpuflame.export.agent_snapshot import AgentSnapshot
from otel_gpuflame.export.hw_metrics import HW_METRICS
from otel_gpuflame.export.metric_spec import (
    COUNTER,
    GAUGE,
    UP_DOWN,
    Instrument,
    Labels,
    MetricSpec,
    Point,
    metric,
)

_NS_PER_S: Final = 1e9


def _events(now: AgentSnapshot) -> Iterator[Point]:
    for key, count in now.capture.events:
        labels = {name: value for name, value in key._asdict().items() if value}
        yield Point(count, labels)


def _profiles(now: AgentSnapshot) -> Iterator[Point]:
    counts = now.delivery
    yield Point(counts.exported, {"outcome": "exported"})
    yield Point(counts.rejected, {"outcome": "rejected"})
    for reason, count in counts.dropped:
        yield Point(count, {"outcome": "dropped", "reason": reason})


def _waits(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _seconds(t.service, t.wait_ns, t.estimated_wait_ns)


def _launches(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _exact_and_estimated(t.service, t.launches, t.estimated_launches)


def _copies(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _exact_and_estimated(t.service, t.copied_bytes, t.estimated_copied_bytes)


def _executed(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _seconds(t.service, t.executed_ns, t.estimated_executed_ns)


def _queued(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _seconds(t.service, t.queued_ns, t.estimated_queued_ns)


def _seconds(service: str, exact_ns: int, estimated_ns: int) -> Iterator[Point]:
    yield from _exact_and_estimated(service, exact_ns / _NS_PER_S, estimated_ns / _NS_PER_S)


def _exact_and_estimated(service: str, exact: float, estimated: float) -> Iterator[Point]:
    yield Point(exact, {"service.name": service, "estimated": False})
    yield Point(estimated, {"service.name": service, "estimated": True})


def overhead_points(now: AgentSnapshot) -> Iterator[Point]:
    """Overhead of the processes that live now."""
    for overhead in now.capture.overheads:
        labels: Labels = {"process.pid": overhead.pid, "service.name": overhead.service}
        yield Point(overhead.share, labels)


METRICS: Final = (
    metric(
        "gpu.wait.time",
        COUNTER,
        "s",
        _waits,
        "Time that threads of a service spent in driver calls that wait for the GPU",
    ),
    metric(
        "gpu.launches",
        COUNTER,
        "{launch}",
        _launches,
        "Work that a service gave to the GPU: kernels, graphs, copies, sets",
    ),
    metric(
        "gpu.time",
        COUNTER,
        "s",
        _executed,
        "Time that devices executed what a service gave them",
    ),
    metric(
        "gpu.queue.time",
        COUNTER,
        "s",
        _queued,
        "Time that what a service gave to devices waited after it could have begun",
    ),
    metric("gpu.copy.io", COUNTER, "By", _copies, "Bytes that a service asked the GPU to copy"),
    metric(
        "otel_gpuflame.events",
        COUNTER,
        "{event}",
        _events,
        "Events by what became of them",
    ),
    metric(
        "otel_gpuflame.events.pending",
        UP_DOWN,
        "{event}",
        lambda now: (Point(count, {"kind": kind}) for kind, count in now.capture.pending),
        "Calls that were seen and have not returned yet, or are on their way",
    ),
    metric(
        "otel_gpuflame.events.remarked",
        COUNTER,
        "{event}",
        lambda now: (Point(count, {"remark": text}) for text, count in now.capture.remarks),
        "Events that are in the profiles with something missing or odd",
    ),
    metric(
        "otel_gpuflame.profiles",
        COUNTER,
        "{profile}",
        _profiles,
        "Profiles by what became of them",
    ),
    metric(
        "otel_gpuflame.export.retries",
        COUNTER,
        "{request}",
        lambda now: (Point(now.delivery.retries),),
        "Requests that the receiver did not take and that are sent again",
    ),
    metric(
        "otel_gpuflame.queue.samples",
        UP_DOWN,
        "{sample}",
        lambda now: (Point(now.delivery.waiting_samples),),
        "Samples that wait to be sent",
    ),
    metric(
        "otel_gpuflame.queue.size",
        UP_DOWN,
        "By",
        lambda now: (Point(now.delivery.waiting_bytes),),
        "Memory of the profiles that wait to be sent, estimated",
    ),
    metric(
        "otel_gpuflame.targets",
        UP_DOWN,
        "{process}",
        lambda now: (Point(now.capture.targets),),
        "Processes being captured",
    ),
    metric(
        "otel_gpuflame.capturing",
        GAUGE,
        "1",
        lambda now: (Point(int(now.capture.is_capturing)),),
        "1 while capture is on, 0 when switched off or stopped by the kill switch",
    ),
    metric(
        "otel_gpuflame.duty",
        GAUGE,
        "1",
        lambda now: (Point(now.capture.duty),),
        "Share of the time in which launches are captured",
    ),
    metric(
        "otel_gpuflame.window.switch.duration",
        GAUGE,
        "s",
        lambda now: (Point(now.capture.switch_ns / _NS_PER_S),),
        "Time to open and close one sampling window",
    ),
    metric(
        "otel_gpuflame.services.overflow",
        COUNTER,
        "{profile}",
        lambda now: (Point(now.capture.overflowed_profiles),),
        "Profiles of services beyond the limit, which share service.name=other in metrics",
    ),
    *HW_METRICS,
)
"""Metrics with a bounded set of attributes, which the SDK keeps for good."""

OVERHEAD: Final = metric(
    "otel_gpuflame.overhead",
    GAUGE,
    "1",
    overhead_points,
    "Estimated share of a process's throughput that capture costs it",
)
"""Has the pid as an attribute: the SDK would keep every process that ever lived, so that this is not given to it."""


def register(meter: Meter, snapshot: Callable[[], AgentSnapshot]) -> None:
    """Create the instruments of METRICS; each collection calls `snapshot` once for each of them."""
    create = {
        Instrument.COUNTER: meter.create_observable_counter,
        Instrument.UP_DOWN_COUNTER: meter.create_observable_up_down_counter,
        Instrument.GAUGE: meter.create_observable_gauge,
    }
    for spec in METRICS:
        create[spec.instrument](
            spec.name, [_callback(spec, snapshot)], unit=spec.unit, description=spec.description
        )


def _callback(
    spec: MetricSpec, snapshot: Callable[[], AgentSnapshot]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterator[Observation]:
        for point in spec.points(snapshot()):
            yield Observation(point.value, point.attributes)

    return observe
