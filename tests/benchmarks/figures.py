"""What a benchmark reports, and how it hands it to tests.benchmarks.run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. `low` and `high` are the quartiles of its repetitions, None where there was one run."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    note: str = ""


def figure(name: str, values: Sequence[float], unit: str, note: str = "") -> Figure:
    """The median of repetitions, with quartiles."""
    if len(values) == 1:
        return Figure(name=name, value=values[0], unit=unit, note=note)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Figure(name=name, value=middle, unit=unit, low=low, high=high, note=note)


def main(measure: Callable[[], list[Figure]]) -> None:
    """Measure and print the figures as a JSON line: each benchmark runs in a process of its own."""
    print(json.dumps([asdict(each) for each in measure()]))
