"""The span processor for applications that use the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer

from otel_gpuflame.instrument import GpuflameSpanProcessor

TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def span_id(span: trace.Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def profile_id(span: trace.Span) -> object:
    """The attribute that Grafana looks for."""
    return span.attributes.get("pyroscope.profile.id")  # type: ignore[attr-defined]


def remote_parent() -> Context:
    """A Context as propagators make it from the headers of a request."""
    sampled = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(TRACE_ID, 7, is_remote=True, trace_flags=sampled)
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


@pytest.fixture
def processed(provider: TracerProvider) -> Tracer:
    """Makes spans that pass through the processor."""
    provider.add_span_processor(GpuflameSpanProcessor())  # type: ignore[arg-type]
    return provider.get_tracer("test")


@pytest.mark.parametrize("parent", [Context(), remote_parent()])
def test_local_roots_carry_the_profile_id(parent: Context, processed: Tracer) -> None:
    """The span that Grafana asks profiles for has its own id as attribute; its children do not."""
    with processed.start_as_current_span("root", context=parent) as root:
        assert profile_id(root) == f"{span_id(root):016x}"
        with processed.start_as_current_span("child") as child:
            assert profile_id(child) is None


def test_local_root_is_exact_for_an_explicit_parent(reader: Any, processed: Tracer) -> None:
    """A span started for another request of the same trace has that request's root."""
    theirs = processed.start_span("their request", context=remote_parent())
    with processed.start_as_current_span("ours", context=remote_parent()):
        item = processed.start_span("item", context=trace.set_span_in_context(theirs))
        part = processed.start_span("part", context=trace.set_span_in_context(item))
        with trace.use_span(part):
            published = reader.read()
    assert int.from_bytes(published.span_id, "big") == span_id(part)
    assert published.local_root == f"{span_id(theirs):016x}"


def test_the_end_of_a_published_span_clears_it(reader: Any, processed: Tracer) -> None:
    """A span that ends without being detached is gone from its thread's record at once."""
    with processed.start_as_current_span("outer") as outer:
        span = processed.start_span("span")
        token = context.attach(trace.set_span_in_context(span))
        assert reader.span_id() == span_id(span)
        span.end()
        assert reader.span_id() is None
        context.detach(token)
        assert reader.span_id() == span_id(outer)


def test_the_end_of_another_span_changes_nothing(
    reader: Any, processed: Tracer, run_in_thread: Callable[[Callable[[], None]], None]
) -> None:
    """Only the thread that publishes the ended span is concerned."""
    with processed.start_as_current_span("outer") as outer:
        processed.start_span("other").end()
        run_in_thread(lambda: processed.start_span("elsewhere").end())
        assert reader.span_id() == span_id(outer)


@pytest.mark.usefixtures("fresh_installation")
def test_without_an_install_the_processor_is_harmless(
    provider: TracerProvider, processed: Tracer
) -> None:
    """Spans start, end, flush and shut down as with any other processor."""
    with processed.start_as_current_span("root") as root:
        pass
    assert profile_id(root) == f"{span_id(root):016x}"
    assert provider.force_flush()
    provider.shutdown()
