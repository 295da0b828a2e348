"""How a metric is described: once, for the SDK and for the document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from otel_gpuflame.export.agent_snapshot import AgentSnapshot

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


COUNTER: Final = Instrument.COUNTER
UP_DOWN: Final = Instrument.UP_DOWN_COUNTER
GAUGE: Final = Instrument.GAUGE


def metric(
    name: str,
    instrument: Instrument,
    unit: str,
    points: Callable[[AgentSnapshot], Iterable[Point]],
    description: str,
) -> MetricSpec:
    """A MetricSpec, by position."""
    return MetricSpec(
        name=name, instrument=instrument, unit=unit, points=points, description=description
    )
