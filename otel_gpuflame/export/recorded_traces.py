"""Sends traces recorded beside a capture: files of OTLP JSON, as the `file` exporter of the Collector writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from otel_gpuflame.errors import TracesFileError
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.sdk_arguments import grpc_arguments, http_arguments
from otel_gpuflame.export.sdk_watch import Reasons

_BATCH_SPANS: Final = 512
"""As many as the SDK sends at a time."""
_ID_BYTES: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
"""OTLP has ids in hexadecimal where the JSON of protobuf has base64. They may be empty."""
_MAX_TIME_NS: Final = 2**64 - 1
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
"""By their numbers in OTLP, where 0 is unspecified; the SDK counts from 0."""
_CODES: Final = {code.value: code for code in StatusCode}


def read_traces(path: Path) -> list[ReadableSpan]:
    """All spans of a file: on each line a request of OTLP in JSON.

    Raises:
        TracesFileError: it cannot be read, or a line is something else.
    """
    spans: list[ReadableSpan] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    spans += _spans(_request(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise TracesFileError(f"cannot read {path}: {error}") from error
    return spans


def of_traces(spans: Sequence[ReadableSpan], trace_ids: Iterable[bytes]) -> list[ReadableSpan]:
    """Spans of these traces (16 bytes each), and of those that their spans have links to: a batch's members."""
    wanted = {int.from_bytes(trace_id, "big") for trace_id in trace_ids}
    wanted |= {
        link.context.trace_id
        for span in spans
        if span.context.trace_id in wanted
        for link in span.links
    }
    return [span for span in spans if span.context.trace_id in wanted]


def send_spans(spans: Sequence[ReadableSpan], by_ns: int, options: OtlpOptions) -> tuple[int, str]:
    """Send spans with all their times moved by `by_ns`.

    Returns:
        How many the receiver took, and why no more: empty if it took all.

    Raises:
        ExportError: a certificate or key cannot be used.
    """
    exporter = _exporter(options)
    reasons = Reasons()
    reasons.attach()
    accepted = 0
    try:
        for begin in range(0, len(spans), _BATCH_SPANS):
            batch = [_moved(span, by_ns) for span in spans[begin : begin + _BATCH_SPANS]]
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                return accepted, reasons.last or "no reason given"
            accepted += len(batch)
    finally:
        reasons.detach()
        exporter.shutdown()
    return accepted, ""


def _request(line: str, where: str) -> ExportTraceServiceRequest:
    try:
        request = json.loads(line, object_hook=_with_protobuf_ids)
        if not isinstance(request, dict) or "resourceSpans" not in request:
            raise TracesFileError(f"{where}: no traces in OTLP JSON (resourceSpans)")
        return json_format.ParseDict(
            request, ExportTraceServiceRequest(), ignore_unknown_fields=True
        )
    except (
        ValueError,
        OverflowError,  # Infinity, as a kind.
        SystemError,  # Half of a surrogate pair, where an object should be (protobuf 7.36).
        RecursionError,
        json_format.ParseError,
    ) as error:
        raise TracesFileError(f"{where}: not OTLP JSON: {error}") from error


def _with_protobuf_ids(message: dict[str, Any]) -> dict[str, Any]:
    for key in _ID_BYTES.keys() & message.keys():
        identity = bytes.fromhex(message[key]) if isinstance(message[key], str) else b"?"
        if len(identity) not in (0, _ID_BYTES[key]):
            raise ValueError(f"{key} is no id: {message[key]!r}")
        message[key] = base64.b64encode(identity).decode()
    return message


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReadableSpan]:
    for of_resource in request.resource_spans:
        resource = Resource(_attributes(of_resource.resource.attributes), of_resource.schema_url)
        for of_scope in of_resource.scope_spans:
            scope = of_scope.scope
            attributes = _attributes(scope.attributes)
            named = InstrumentationScope(
                scope.name, scope.version, of_scope.schema_url, attributes or None
            )
            for span in of_scope.spans:
                yield _readable(span, resource, named)


def _readable(span: SpanMessage, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    parent = None
    if span.parent_span_id:
        parent = _context(span.trace_id, span.parent_span_id, "", span.flags)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, span.trace_state, span.flags),
        parent=parent,
        resource=resource,
        attributes=_attributes(span.attributes),
        events=[Event(e.name, _attributes(e.attributes), e.time_unix_nano) for e in span.events],
        links=[
            Link(
                _context(each.trace_id, each.span_id, each.trace_state, each.flags),
                _attributes(each.attributes),
            )
            for each in span.links
        ],
        # Unspecified is internal, by the specification. So is what the SDK has no name for, as a newer producer may.
        kind=_KINDS.get(span.kind, SpanKind.INTERNAL),
        instrumentation_scope=scope,
        status=Status(_CODES.get(span.status.code, StatusCode.UNSET), span.status.message or None),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
    )


def _context(trace_id: bytes, span_id: bytes, state: str, flags: int) -> SpanContext:
    return SpanContext(
        int.from_bytes(trace_id, "big"),
        int.from_bytes(span_id, "big"),
        is_remote=False,
        trace_flags=TraceFlags(flags & 0xFF),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return json.dumps(_attributes(value.kvlist_value.values), default=repr)
    return "" if kind is None else getattr(value, kind)


def _moved(span: ReadableSpan, by_ns: int) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[Event(e.name, e.attributes, _moved_ns(e.timestamp, by_ns)) for e in span.events],
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=_moved_ns(span.start_time, by_ns),
        end_time=_moved_ns(span.end_time, by_ns),
    )


def _moved_ns(time_ns: int | None, by_ns: int) -> int:
    """As far as OTLP has times: a file may have 0, or the last one, where nothing was known."""
    return min(max((time_ns or 0) + by_ns, 0), _MAX_TIME_NS)


def _exporter(options: OtlpOptions) -> SpanExporter:
    # Imported where needed, as for metrics: loading grpcio takes a tenth of a second that HTTP needs not.
    if options.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(**grpc_arguments(options))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter(**http_arguments(options))
