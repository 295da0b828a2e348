"""A process has so many spans in a window; what others did stays, without a link, and is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import Measure
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, SamplingWindow, Watermark
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.linked_spans import LinkedSpans
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.top import total
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    SAMPLED,
    START_NS,
    TRACE_ID,
    attributed,
    attribution,
    batch,
    call,
    run,
    samples,
    target_event,
    usual,
)

WINDOW_NS = 1_000_000
OPTIONS = AggregateOptions(window_ns=WINDOW_NS, span_link=SpanLink.ACTIVE, most_spans=2)


def of_span(number: int, **more: Any) -> dict[str, Any]:
    """Columns of what this sampled span did."""
    return {"flags": SAMPLED, "trace_id": TRACE_ID, "span_id": number.to_bytes(8, "little"), **more}


def launch(number: int, at_ns: int = 10, process: ProcessKey = PROCESS, **more: Any) -> CallArray:
    """A launch of a span, this long after the start."""
    columns = of_span(number, process=process, start_ns=START_NS + at_ns, **more)
    return call("cuLaunchKernel", **columns)


def by_span(bundles: list[Bundle], sample_type: ValueType) -> dict[int, int]:
    """Values by number of the span, 0 for none."""
    found: Counter[int] = Counter()
    for (_, link), value in samples(bundles, sample_type).items():
        found[0 if link is None else int.from_bytes(link.span_id, "little")] += value
    return dict(found)


def test_the_first_spans_of_a_window_stay_linked() -> None:
    """Also when they come again after the limit was reached; totals are what they were."""
    calls = batch(*(launch(number) for number in (1, 2)))
    more = batch(*(launch(number) for number in (3, 1, 4, 3, 2)))
    bundles, aggregator = run([*usual(), calls, more], OPTIONS)
    assert by_span(bundles, GPU_LAUNCH) == {1: 2, 2: 2, 0: 3}
    assert +aggregator.ledger.links == {("launch", "linked"): 4, ("launch", "too_many"): 3}


def test_each_window_begins_anew() -> None:
    """The limit is for what one profile holds."""
    events = [
        *usual(),
        batch(*(launch(number) for number in (1, 2, 3))),
        batch(*(launch(number, WINDOW_NS + 10) for number in (3, 4, 5))),
        Watermark(START_NS + 3 * WINDOW_NS),
    ]
    bundles, _ = run(events, OPTIONS)
    assert [len(bundle.links) for bundle in bundles] == [2, 2]
    assert sum(value for span, value in by_span(bundles, GPU_LAUNCH).items() if span) == 4
    assert total(bundles, GPU_LAUNCH) == 6


def test_a_process_cannot_take_the_links_of_another() -> None:
    """One that makes up a span for each launch, and one that behaves."""
    calls = batch(*(launch(number) for number in range(100, 200)), *(launch(7, process=OTHER),) * 3)
    bundles, aggregator = run([*usual(), target_event(OTHER, "well"), calls], OPTIONS)
    assert by_span(bundles, GPU_LAUNCH)[7] == 3
    assert aggregator.ledger.links["launch", "linked"] == 5
    assert aggregator.ledger.links["launch", "too_many"] == 98


def test_executions_are_limited_and_counted_as_well() -> None:
    """Each once, by its time; waits of the same window have no more spans than that."""
    rows = [
        attribution(measure, 10, **of_span(number, name=0))
        for number in (1, 2, 3)
        for measure in (Measure.GPU_TIME, Measure.GPU_QUEUE, Measure.GPU_WAIT)
    ]
    bundles, aggregator = run([*usual(), attributed(*rows)], OPTIONS)
    for sample_type in (GPU_TIME, GPU_WAIT):
        assert sorted(by_span(bundles, sample_type).values()) == [10, 10, 10]
        assert by_span(bundles, sample_type)[0] == 10
    assert +aggregator.ledger.links == {("execution", "linked"): 2, ("execution", "too_many"): 1}


def test_estimates_are_limited_as_well() -> None:
    """A sampling window has spans of its own."""
    window = SamplingWindow(START_NS, START_NS + 1000, START_NS, START_NS + 500, 500_000_000)
    calls = batch(*(launch(number) for number in (1, 2, 3)))
    events = [*usual(), window, calls, Watermark(START_NS + 2 * WINDOW_NS)]
    bundles, aggregator = run(events, replace(OPTIONS, sampled=True))
    assert sorted(by_span(bundles, GPU_LAUNCH).values()) == [2, 2, 2]
    assert by_span(bundles, GPU_LAUNCH)[0] == 2
    assert aggregator.ledger.links["launch", "too_many"] == 1


@pytest.mark.parametrize(
    ("flags", "ids", "outcome"),
    [
        (SAMPLED, True, "linked"),
        (CallFlag.HAS_SPAN, True, "not_sampled"),
        (0, True, "no_span"),
        (SAMPLED, False, "no_span"),
        (CallFlag.HAS_SPAN, False, "no_span"),
    ],
)
@pytest.mark.parametrize("most", [None, 5])
def test_why_something_has_no_link_is_counted(
    flags: int, ids: bool, outcome: str, most: int | None
) -> None:
    """Each call by its kind. Ids of zeros are none, whatever is said of them."""
    columns = of_span(1, flags=flags) if ids else {"flags": flags}
    calls = batch(*(call(api, **columns) for api in ("cuLaunchKernel", "cuCtxSynchronize")))
    _, aggregator = run([*usual(), calls], replace(OPTIONS, most_spans=most))
    assert +aggregator.ledger.links == {("launch", outcome): 1, ("wait", outcome): 1}


def test_samples_of_threads_are_no_calls() -> None:
    """They are linked too, but nobody asks how many."""
    rows = call(0, **of_span(1))
    rows["kind"] = wire.Kind.CPU_SAMPLE
    _, aggregator = run([*usual(), batch(rows)], OPTIONS)
    assert +aggregator.ledger.links == {}


def test_without_links_nothing_is_counted() -> None:
    """`record` makes tables only."""
    _, aggregator = run([*usual(), batch(launch(1))], replace(OPTIONS, span_link=None))
    assert +aggregator.ledger.links == {}


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=12), max_size=6),
    st.integers(0, 4),
)
def test_what_stays_is_what_came_first(batches: list[list[tuple[int, int]]], most: int) -> None:
    """Against the obvious way to do it; of a batch, any order may be the first. Sums are not touched."""
    spans, seen = LinkedSpans(), set[tuple[int, int]]()
    for rows in batches:
        keys = np.zeros((len(rows), 5), np.uint64)
        for key, (process, span) in zip(keys, rows, strict=True):
            key[0], key[2:] = process << 32 | 9, (span, span, span)
        groups = Groups(keys, np.arange(len(rows)).reshape(-1, 1))
        limited, over = spans.limit(groups, 2, most)
        assert limited.sums is groups.sums
        kept = {rows[i] for i in range(len(rows)) if limited.keys[i, 4]}
        lost = {rows[i] for i in np.flatnonzero(over)}
        assert kept | lost == {row for row in rows if row[1]}
        assert not kept & lost
        assert {row for row in rows if row in seen} <= kept
        seen |= kept
        for process in range(3):
            mine = {row for row in seen if row[0] == process}
            assert len(mine) <= most
            assert len(mine) == most or not any(row[0] == process for row in lost)
        assert not limited.keys[over, 2:].any()
