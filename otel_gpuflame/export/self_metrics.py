"""What the agent tells about itself and about its targets, as OpenTelemetry metrics.

All instruments are observed: their callbacks read a copy of what is known, in the thread that exports metrics. Nothing
of this runs where calls are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from otel_gpuflame.export.agent_snapshot import AgentSnapshot

_NS_PER_S: Final = 1e9

Labels = dict[str, "str | int | bool"]


class Instrument(Enum):
    """How values of a metric are to be read."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "up-down counter"
    GAUGE = "gauge"


class Point(NamedTuple):
    """One value with its attributes."""

    value: float
    attributes: Labels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric: name and unit as in OpenTelemetry's conventions (UCUM), and where its values come from."""

    name: str
    instrument: Instrument
    unit: str
    description: str
    points: Callable[[AgentSnapshot], Iterable[Point]]


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
    for totals in now.capture.services:
        yield Point(totals.wait_ns / _NS_PER_S, {"service.name": totals.service})


def _launches(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _exact_and_estimated(t.service, t.launches, t.estimated_launches)


def _copies(now: AgentSnapshot) -> Iterator[Point]:
    for t in now.capture.services:
        yield from _exact_and_estimated(t.service, t.copied_bytes, t.estimated_copied_bytes)


def _exact_and_estimated(service: str, exact: int, estimated: int) -> Iterator[Point]:
    yield Point(exact, {"service.name": service, "estimated": False})
    yield Point(estimated, {"service.name": service, "estimated": True})


def overhead_points(now: AgentSnapshot) -> Iterator[Point]:
    """Overhead of the processes that live now."""
    for overhead in now.capture.overheads:
        labels: Labels = {"process.pid": overhead.pid, "service.name": overhead.service}
        yield Point(overhead.share, labels)


_COUNTER, _UP_DOWN, _GAUGE = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER, Instrument.GAUGE


def _spec(
    name: str,
    instrument: Instrument,
    unit: str,
    points: Callable[[AgentSnapshot], Iterable[Point]],
    description: str,
) -> MetricSpec:
    return MetricSpec(
        name=name, instrument=instrument, unit=unit, points=points, description=description
    )


METRICS: Final = (
    _spec(
        "gpu.wait.time",
        _COUNTER,
        "s",
        _waits,
        "Time that threads of a service spent in driver calls that wait for the GPU",
    ),
    _spec(
        "gpu.launches",
        _COUNTER,
        "{launch}",
        _launches,
        "Work that a service gave to the GPU: kernels, graphs, copies, sets",
    ),
    _spec("gpu.copy.io", _COUNTER, "By", _copies, "Bytes that a service asked the GPU to copy"),
    _spec(
        "otel_gpuflame.events",
        _COUNTER,
        "{event}",
        _events,
        "Events by what became of them",
    ),
    _spec(
        "otel_gpuflame.events.pending",
        _UP_DOWN,
        "{event}",
        lambda now: (Point(count, {"kind": kind}) for kind, count in now.capture.pending),
        "Calls that were seen and have not returned yet, or are on their way",
    ),
    _spec(
        "otel_gpuflame.events.remarked",
        _COUNTER,
        "{event}",
        lambda now: (Point(count, {"remark": text}) for text, count in now.capture.remarks),
        "Events that are in the profiles with something missing or odd",
    ),
    _spec(
        "otel_gpuflame.profiles",
        _COUNTER,
        "{profile}",
        _profiles,
        "Profiles by what became of them",
    ),
    _spec(
        "otel_gpuflame.export.retries",
        _COUNTER,
        "{request}",
        lambda now: (Point(now.delivery.retries),),
        "Requests that the receiver did not take and that are sent again",
    ),
    _spec(
        "otel_gpuflame.queue.samples",
        _UP_DOWN,
        "{sample}",
        lambda now: (Point(now.delivery.waiting_samples),),
        "Samples that wait to be sent",
    ),
    _spec(
        "otel_gpuflame.queue.size",
        _UP_DOWN,
        "By",
        lambda now: (Point(now.delivery.waiting_bytes),),
        "Memory of the profiles that wait to be sent, estimated",
    ),
    _spec(
        "otel_gpuflame.targets",
        _UP_DOWN,
        "{process}",
        lambda now: (Point(now.capture.targets),),
        "Processes being captured",
    ),
    _spec(
        "otel_gpuflame.capturing",
        _GAUGE,
        "1",
        lambda now: (Point(int(now.capture.is_capturing)),),
        "1 while capture is on, 0 when switched off or stopped by the kill switch",
    ),
    _spec(
        "otel_gpuflame.duty",
        _GAUGE,
        "1",
        lambda now: (Point(now.capture.duty),),
        "Share of the time in which launches are captured",
    ),
    _spec(
        "otel_gpuflame.window.switch.duration",
        _GAUGE,
        "s",
        lambda now: (Point(now.capture.switch_ns / _NS_PER_S),),
        "Time to open and close one sampling window",
    ),
    _spec(
        "otel_gpuflame.services.overflow",
        _COUNTER,
        "{profile}",
        lambda now: (Point(now.capture.overflowed_profiles),),
        "Profiles of services beyond the limit, which share service.name=other in metrics",
    ),
)
"""Metrics with a bounded set of attributes, which the SDK keeps for good."""

OVERHEAD: Final = _spec(
    "otel_gpuflame.overhead",
    _GAUGE,
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
