# SPDX-License-Identifier: Apache-2.0
"""A span processor for applications that use ``opentelemetry-sdk``."""

from __future__ import annotations

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context

from otel_gpuflame.instrument.hook import INSTALLATION
from otel_gpuflame.instrument.span_record import span_record


class GpuflameSpanProcessor:
    """Finds the local root of each span where its parent is known for certain.

    Without it a span's root is found when the span becomes current, and remains unknown where its
    parent is not current then; and a span that ends while it is attached is published on.

    Add it with ``tracer_provider.add_span_processor(GpuflameSpanProcessor())``. It has the methods
    of ``opentelemetry.sdk.trace.SpanProcessor`` but does not derive from it, so that the SDK need
    not be there. It exports nothing and keeps nothing.
    """

    def on_start(self, span: trace.Span, parent_context: Context | None = None) -> None:
        """Finds and remembers the span's local root. If the span is one, it is marked as such."""
        enclosing = context_api.get_current() if parent_context is None else parent_context
        span_record(span, enclosing)

    def _on_ending(self, span: trace.Span) -> None:
        """The SDK calls this, too, on each of its processors."""

    def on_end(self, span: trace.Span) -> None:
        """Clears this thread's record if the span that ended is still in it."""
        publisher = INSTALLATION.publisher
        # The SDK hands over a read-only copy, whose context is None only if it was made by hand.
        context = span.get_span_context()
        if publisher is not None and context is not None:
            publisher.span_ended(context)

    def shutdown(self) -> None:
        """Nothing to release: publication goes on until ``uninstall``."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is ever pending."""
        return True
