"""Sums of times by span."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.model import Bundle, Link, Profile, ValueType, Window
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_LAUNCH,
    GPU_TIME,
    GPU_WAIT,
    SCOPE,
)
from otel_gpuflame.profile.span_times import SpanTime, span_times

FIRST, SECOND = (Link(bytes([number] * 16), bytes([number] * 8)) for number in (1, 2))


def profile(sample_type: ValueType, rows: list[tuple[int, int]]) -> Profile:
    """Links and values, all in one stack each."""
    links = np.array([link for link, _ in rows], np.int32)
    values = np.array([value for _, value in rows], np.int64)
    return Profile(sample_type, np.arange(len(rows), dtype=np.int32), links, links * 0, values)


def bundle(*profiles: Profile, scope: str = SCOPE) -> Bundle:
    """Of one target."""
    return Bundle(
        resource=(),
        scope=scope,
        window=Window(0, 1),
        frames=(Frame(FrameKind.PYTHON, "a"),),
        stacks=((0,),),
        links=(FIRST, SECOND),
        attribute_sets=((),),
        profiles=profiles,
    )


def test_times_are_summed_by_span_over_stacks_and_bundles() -> None:
    """Executions and waits, each by itself; counts are no times."""
    first = bundle(
        profile(GPU_TIME, [(0, 1), (0, 2), (-1, 4)]),
        profile(GPU_WAIT, [(1, 8)]),
        profile(GPU_LAUNCH, [(1, 100)]),
    )
    second = bundle(profile(GPU_TIME, [(0, 16)]))
    assert span_times([first, second]) == {
        FIRST: SpanTime(19, 0),
        SECOND: SpanTime(0, 8),
        None: SpanTime(4, 0),
    }


def test_an_estimate_marks_the_whole() -> None:
    """Only the span that it is part of."""
    exact = bundle(profile(GPU_TIME, [(0, 1), (1, 2)]))
    estimated = bundle(profile(GPU_TIME, [(0, 4)]), scope=ESTIMATED_SCOPE)
    for order in ([exact, estimated], [estimated, exact]):
        assert span_times(order) == {FIRST: SpanTime(5, 0, True), SECOND: SpanTime(2, 0)}


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 1 << 55))))
def test_the_sum_is_the_total(rows: list[tuple[int, int]]) -> None:
    """Exact, whatever the values."""
    times = span_times([bundle(profile(GPU_WAIT, rows))])
    assert sum(each.wait_ns for each in times.values()) == sum(value for _, value in rows)
