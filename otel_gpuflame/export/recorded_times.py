"""Writes to recorded spans what the GPU did for them, from the profiles of the capture that was recorded beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.util.types import AttributeValue

from otel_gpuflame.export.recorded_batches import SpansByKey, link_to, local_root, spans_by_key
from otel_gpuflame.profile.model import Link, Window
from otel_gpuflame.profile.span_times import SpanTime

TIME: Final = "gpu.time_ns"
"""What devices executed for this span itself. Over all spans, and what has none, the sum is the total."""
WAIT: Final = "gpu.wait_ns"
"""How long threads waited for devices, in this span itself."""
REQUEST_TIME: Final = "gpu.request.time_ns"
"""On the first span of a request in its process: the same for all of the request there."""
REQUEST_WAIT: Final = "gpu.request.wait_ns"
BATCH_TIME: Final = "gpu.batch.time_ns"
"""On a batch of which the time was divided: what it had."""
BATCH_WAIT: Final = "gpu.batch.wait_ns"
ESTIMATED: Final = "gpu.estimated"
"""True where a part of the times is an estimate: a share of a batch."""
COVERAGE: Final = "gpu.coverage"
"""Which part of the span's duration was recorded: 0 to 1. Below 1 the times lack what was before or after."""

_Times = Mapping[Link | None, SpanTime]


class RecordedTimes(NamedTuple):
    """Times by link, of one capture, that was recorded from the start of `window` to its end."""

    window: Window
    own: _Times
    """By the innermost span."""
    of_requests: _Times
    """By the first span of a request in its process."""
    batches: _Times
    """What batches had of which the time was divided: in the others it is their members'."""


class PlacedTimes(NamedTuple):
    """Where the own times went: together they are the totals of the capture."""

    on_spans: SpanTime
    elsewhere: SpanTime
    """On spans that are not there."""
    unlinked: SpanTime


def with_gpu_times(spans: Sequence[ReadableSpan], times: RecordedTimes) -> list[ReadableSpan]:
    """The same spans; those that the GPU worked for have attributes that say how long. What is 0 is left out."""
    by_key = spans_by_key(spans)
    return [_with(span, _attributes(span, times, by_key)) for span in spans]


def place(spans: Sequence[ReadableSpan], own: _Times) -> PlacedTimes:
    """Sum up where the times of a capture are."""
    there = {link_to(span.context) for span in spans}
    on_spans = elsewhere = SpanTime()
    for link, time in own.items():
        if link in there:
            on_spans = on_spans.plus(time)
        elif link is not None:
            elsewhere = elsewhere.plus(time)
    return PlacedTimes(on_spans, elsewhere, own.get(None, SpanTime()))


def _attributes(
    span: ReadableSpan, times: RecordedTimes, by_key: SpansByKey
) -> dict[str, AttributeValue]:
    link = link_to(span.context)
    own, batch = times.own.get(link, SpanTime()), times.batches.get(link, SpanTime())
    # A publisher that does not say what is the local root gives the span itself, as if it were one.
    is_root = local_root(span, by_key) is span
    request = times.of_requests.get(link, SpanTime()) if is_root else SpanTime()
    values: dict[str, AttributeValue] = {
        TIME: own.time_ns,
        WAIT: own.wait_ns,
        REQUEST_TIME: request.time_ns,
        REQUEST_WAIT: request.wait_ns,
        BATCH_TIME: batch.time_ns,
        BATCH_WAIT: batch.wait_ns,
        ESTIMATED: own.is_estimated or request.is_estimated,
    }
    found: dict[str, AttributeValue] = {name: value for name, value in values.items() if value}
    if found:
        found[COVERAGE] = coverage(span, times.window)
    return found


def coverage(span: ReadableSpan, window: Window) -> float:
    """Which part of a span's duration lies in the window, 0 to 1; of a span without duration, whether it does."""
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    if end_ns <= start_ns:
        return float(window.start_unix_ns <= start_ns < window.end_unix_ns)
    inside_ns = min(end_ns, window.end_unix_ns) - max(start_ns, window.start_unix_ns)
    return max(inside_ns, 0) / (end_ns - start_ns)


def _with(span: ReadableSpan, attributes: Mapping[str, AttributeValue]) -> ReadableSpan:
    if not attributes:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes={**(span.attributes or {}), **attributes},
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )
