"""Work for several requests at once is the batch's, and the batch knows whose it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Span, Tracer

from otel_gpuflame import instrument
from otel_gpuflame.instrument import batching


@pytest.fixture(autouse=True)
def global_provider(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the product finds."""
    monkeypatch.setattr(batching.trace, "get_tracer", provider.get_tracer)


def requests(tracer: Tracer, count: int) -> tuple[list[Span], list[Context]]:
    """Spans of requests that wait, and their Contexts."""
    spans = [tracer.start_span(f"request {number}") for number in range(count)]
    return spans, [trace.set_span_in_context(span, Context()) for span in spans]


def shares(span: Span) -> dict[int, float]:
    """Of a batch, by the member's span id."""
    assert isinstance(span, ReadableSpan)
    return {
        link.context.span_id: link.attributes["gpu.batch.share"]  # type: ignore[index, misc]
        for link in span.links
    }


def ids(spans: list[Span]) -> list[int]:
    """Span ids."""
    return [span.get_span_context().span_id for span in spans]


@pytest.mark.parametrize("count", range(17))
def test_a_batch_is_linked_to_its_members(count: int, reader: Any, tracer: Tracer) -> None:
    """It is current and published inside, a root of its own, and shares sum to one."""
    spans, contexts = requests(tracer, count)
    with tracer.start_as_current_span("worker") as worker:
        with instrument.batch(contexts) as span:
            assert trace.get_current_span() is span
            published = reader.read()
            assert int.from_bytes(published.span_id, "big") == span.get_span_context().span_id
            assert published.local_root == published.span_id.hex()
        assert reader.span_id() == worker.get_span_context().span_id
    assert isinstance(span, ReadableSpan)
    assert span.name == "gpu.batch"
    assert span.parent is None
    assert span.attributes is not None
    assert span.attributes["gpu.batch.size"] == count
    assert list(shares(span)) == ids(spans)
    assert math.isclose(sum(shares(span).values()), min(count, 1))
    assert span.end_time is not None


def test_weights_divide_the_batch(tracer: Tracer) -> None:
    """By their sum, whatever their unit."""
    spans, contexts = requests(tracer, 3)
    with instrument.batch(contexts, weights=[10, 0, 30]) as span:
        pass
    assert shares(span) == dict(zip(ids(spans), [0.25, 0.0, 0.75], strict=True))


def test_weights_may_be_as_large_as_numbers_are(tracer: Tracer) -> None:
    """Their sum need not be a number."""
    spans, contexts = requests(tracer, 2)
    with instrument.batch(contexts, weights=[1e308, 1e308]) as span:
        pass
    assert shares(span) == dict.fromkeys(ids(spans), 0.5)


def test_members_without_a_span_keep_their_share(tracer: Tracer) -> None:
    """What an untraced request cost is not put on the others."""
    spans, contexts = requests(tracer, 1)
    with instrument.batch([*contexts, Context()]) as span:
        pass
    assert shares(span) == {ids(spans)[0]: 0.5}


def test_a_request_that_is_there_twice_has_one_link(tracer: Tracer) -> None:
    """Its shares are added."""
    spans, contexts = requests(tracer, 2)
    with instrument.batch([*contexts, contexts[0]], weights=[1, 2, 1]) as span:
        pass
    assert shares(span) == dict.fromkeys(ids(spans), 0.5)


def test_a_request_in_many_steps_is_in_each_batch(reader: Any, tracer: Tracer) -> None:
    """Continuous batching: others come and go, and each step's work is on its own span."""
    spans, contexts = requests(tracer, 3)
    steps = []
    for step in range(3):
        with instrument.batch(contexts[: step + 1]) as span:
            assert reader.span_id() == span.get_span_context().span_id
        steps.append(shares(span))
    assert [list(step) for step in steps] == [ids(spans)[: n + 1] for n in range(3)]


@pytest.mark.parametrize(
    "weights",
    [[1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 0.0]],
)
def test_weights_that_make_no_sense_are_refused(weights: list[float], tracer: Tracer) -> None:
    """Before anything is opened."""
    _, contexts = requests(tracer, 2)
    before = context.get_current()
    with pytest.raises(ValueError, match=r"weight"), instrument.batch(contexts, weights):
        pytest.fail("the batch was opened")
    assert context.get_current() is before


def test_an_error_in_the_batch_is_recorded_and_goes_on(tracer: Tracer) -> None:
    """As with any span."""
    with pytest.raises(RuntimeError, match="boom"), instrument.batch([]) as span:
        raise RuntimeError("boom")
    assert isinstance(span, ReadableSpan)
    assert not span.status.is_ok
    assert tracer is not None
