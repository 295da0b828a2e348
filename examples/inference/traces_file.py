"""Tracing with spans as OTLP JSON in a file, a request a line: what `otel-gpuflame replay --traces` reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

IDS = ("traceId", "spanId", "parentSpanId")


def start_tracing(service: str, traces: Path | None) -> TracerProvider:
    """The provider that `opentelemetry-instrument` made, else a new one; its spans go to the file, too."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        trace.set_tracer_provider(provider)
    if traces is not None:
        provider.add_span_processor(BatchSpanProcessor(TracesFile(traces)))
    return provider


class TracesFile(SpanExporter):
    """Instead of a Collector with a `file` exporter."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write them on one line."""
        request = json_format.MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        self._file.write(json.dumps(with_hexadecimal_ids(request)) + "\n")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def with_hexadecimal_ids(value: Any) -> Any:
    """OTLP has ids in hexadecimal, where protobuf's JSON has base64."""
    if isinstance(value, list):
        return [with_hexadecimal_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(item).hex() if key in IDS else with_hexadecimal_ids(item)
        for key, item in value.items()
    }
