"""Launches of graphs that are windowed: scaled as others are, and their executions as before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import Calls, Event
from otel_gpuflame.events.windowed import launch_graphs
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE, GPU_LAUNCH, GPU_TIME, SCOPE
from tests.unit.pipeline.windowed import (
    MS,
    Offset,
    Recording,
    Schedule,
    aggregate,
    total,
    windowed,
)

CAPTURE: Final = Path(__file__).parents[2] / "golden" / "captures" / "h200_gpu_graph.ogfcap"
STRATUM_NS: Final = 7 * MS
STRATA: Final = 7
PLACES: Final = 32


@pytest.fixture(scope="module")
def recording() -> Recording:
    """50 launches of a graph of 192 kernels on an H200, one a millisecond, each followed by a wait."""
    with ReplaySource(CAPTURE, call_dtype=wire.CALL) as source:
        events: list[Event] = list(source.events())
    starts_ns = [
        int(start_ns)
        for event in events
        if isinstance(event, Calls)
        for start_ns in event.rows["start_ns"][launch_graphs(event.rows)]
    ]
    return Recording(events, min(starts_ns) - MS // 5)


def scheduled(recording: Recording) -> Schedule:
    """Strata over the launches."""
    until_ns = recording.begin_ns + STRATA * STRATUM_NS
    return Schedule(STRATUM_NS, 1 / 3, until_ns, with_graph_launches=True)


def without_graph_launches(events: Iterable[Event]) -> Iterator[Event]:
    """As if no probe had seen one."""
    for event in events:
        if isinstance(event, Calls):
            yield Calls(event.rows.take(np.flatnonzero(~launch_graphs(event.rows))))
        else:
            yield event


def seen(both: CorrelatingAggregator, kind: str) -> int:
    """Events of a kind, all of which are in profiles."""
    (books,) = [each for each in both.ledger.accounts() if each.kind == kind]
    assert (books.dropped, books.pending) == ((), 0)
    assert books.seen == books.profiled
    return books.seen


def no_launch_ns(bundles: list[Bundle]) -> int:
    """Σ gpu_time of which nobody knows who asked for it."""
    found = 0
    for bundle in bundles:
        marked = [
            any(bundle.frames[index].name.startswith("[no launch") for index in stack)
            for stack in bundle.stacks
        ]
        for profile in (p for p in bundle.profiles if p.sample_type == GPU_TIME):
            found += int(profile.value[np.array(marked, np.bool_)[profile.stack]].sum())
    return found


def test_windowed_launches_of_graphs_are_right_on_average(recording: Recording) -> None:
    """In the mean what there was, to 2 %; what they executed is told as where all of them are seen."""
    schedule = scheduled(recording)
    launched = recording.calls["start_ns"][launch_graphs(recording.calls)]
    inside, after = (
        int(np.count_nonzero((launched < schedule.until_ns) == is_inside))
        for is_inside in (True, False)
    )
    found = []
    for place in range(PLACES):
        offset = Offset((place + 0.5) / PLACES)
        bundles, both = aggregate(windowed(recording, schedule, offset))
        found.append(total(bundles, GPU_LAUNCH, ESTIMATED_SCOPE))
        assert total(bundles, GPU_LAUNCH, SCOPE) == after
        assert seen(both, "graph_launch") < inside
        always, _ = aggregate(
            windowed(recording, replace(schedule, with_graph_launches=False), offset)
        )
        assert total(always, GPU_LAUNCH, SCOPE) == inside + after
        told = total(bundles, GPU_TIME, ESTIMATED_SCOPE)
        assert told == total(always, GPU_TIME, ESTIMATED_SCOPE)
        assert no_launch_ns(bundles) == no_launch_ns(always)
    assert max(found) > 1.1 * inside > 0.9 * inside > min(found)
    assert fmean(found) == pytest.approx(inside, rel=0.02)


def test_executions_of_a_graph_whose_launch_nobody_saw_count_without_it(
    recording: Recording,
) -> None:
    """As those of other launches: their time is scaled, under a mark."""
    # One window: in a short one both sides agree nowhere, whoever was seen.
    long_ns = STRATA * STRATUM_NS
    schedule = replace(scheduled(recording), stratum_ns=long_ns, duty=0.5)
    events = list(windowed(recording, schedule, Offset(0.3)))
    bundles, both = aggregate(events)
    unseen, books = aggregate(without_graph_launches(events))
    assert no_launch_ns(bundles) == 0 < total(bundles, GPU_TIME, ESTIMATED_SCOPE)
    assert total(unseen, GPU_TIME, ESTIMATED_SCOPE) == total(bundles, GPU_TIME, ESTIMATED_SCOPE)
    assert no_launch_ns(unseen) == total(unseen, GPU_TIME, ESTIMATED_SCOPE)
    assert seen(books, "execution") == seen(both, "execution") > 0
