"""What recorded spans get of the GPU's times, where the recording of a golden test cannot tell cases apart."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_gpuflame.export.recorded_times import RecordedTimes, coverage, place, with_gpu_times
from otel_gpuflame.profile.model import Link, Window
from otel_gpuflame.profile.span_times import SpanTime

TRACE = 7
WINDOW = Window(100, 200)
SERVICE, CALLER = (Resource({"service.name": name}) for name in ("inference", "caller"))


def link(span_id: int) -> Link:
    """A span of the trace."""
    return Link(TRACE.to_bytes(16, "big"), span_id.to_bytes(8, "big"))


def span(
    span_id: int,
    parent: int | None = None,
    resource: Resource = SERVICE,
    times: tuple[int, int] = (100, 200),
) -> ReadableSpan:
    """A recorded span with an attribute of its own."""
    contexts = [
        None if each is None else SpanContext(TRACE, each, is_remote=False)
        for each in (span_id, parent)
    ]
    return ReadableSpan(
        name="span",
        context=contexts[0],
        parent=contexts[1],
        resource=resource,
        attributes={"own": True},
        start_time=times[0],
        end_time=times[1],
    )


def times(
    own: dict[Link | None, SpanTime], of_requests: dict[Link | None, SpanTime]
) -> RecordedTimes:
    """Without batches."""
    return RecordedTimes(WINDOW, own, of_requests, {})


def test_only_a_local_root_has_the_request() -> None:
    """Whatever profiles say: a publisher that names no local root gives them the span itself."""
    spans = [span(1, resource=CALLER), span(2, parent=1), span(3, parent=2)]
    found = with_gpu_times(
        spans,
        times(
            {link(2): SpanTime(1, 0), link(3): SpanTime(2, 5)},
            {link(2): SpanTime(1, 0), link(3): SpanTime(2, 5)},
        ),
    )
    assert [dict(each.attributes or {}) for each in found] == [
        {"own": True},
        {"own": True, "gpu.time_ns": 1, "gpu.request.time_ns": 1, "gpu.coverage": 1.0},
        {"own": True, "gpu.time_ns": 2, "gpu.wait_ns": 5, "gpu.coverage": 1.0},
    ]
    assert found[0] is spans[0]


def test_a_root_that_did_nothing_itself_has_its_requests_time() -> None:
    """Its own time is left out."""
    (found,) = with_gpu_times([span(2)], times({}, {link(2): SpanTime(0, 3, True)}))
    assert dict(found.attributes or {}) == {
        "own": True,
        "gpu.request.wait_ns": 3,
        "gpu.estimated": True,
        "gpu.coverage": 1.0,
    }


def test_what_is_on_other_spans_is_told_apart() -> None:
    """All three parts together are the total."""
    own = {link(1): SpanTime(1, 2), link(9): SpanTime(4, 8), None: SpanTime(16, 32)}
    assert place([span(1), span(2)], own) == (SpanTime(1, 2), SpanTime(4, 8), SpanTime(16, 32))
    assert place([], {}) == (SpanTime(), SpanTime(), SpanTime())


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "expected"),
    [
        (100, 200, 1),
        (120, 130, 1),
        (50, 150, 0.5),
        (150, 350, 0.25),
        (0, 400, 0.25),
        (0, 100, 0),
        (200, 300, 0),
        (100, 100, 1),
        (200, 200, 0),
        (99, 99, 0),
        (150, 120, 1),  # The clock went back: taken as an instant.
    ],
)
def test_coverage_is_the_part_of_the_span_that_was_recorded(
    start_ns: int, end_ns: int, expected: float
) -> None:
    """0 to 1."""
    assert coverage(span(1, times=(start_ns, end_ns)), WINDOW) == expected
