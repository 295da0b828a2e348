"""Writes spans as OTLP JSON, a request a line: what `otel-gpuflame replay --traces` reads."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

IDS = ("traceId", "spanId", "parentSpanId")


class TracesFile(SpanExporter):
    """Instead of a Collector with a `file` exporter."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write them on one line."""
        request = json_format.MessageToDict(encode_spans(spans))
        line = json.dumps(with_hexadecimal_ids(request)) + "\n"
        with self._lock:  # Spans end in all threads.
            self._file.write(line)
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
