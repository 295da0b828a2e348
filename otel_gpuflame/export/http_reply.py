"""What an HTTP answer means for the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)

from otel_gpuflame.export.reply import (
    CREDENTIALS,
    MAX_REPLY_BYTES,
    PROTOBUF,
    UNSUPPORTED,
    accepted,
    parse_status,
    printable,
)
from otel_gpuflame.export.result import ExportResult, Outcome

_RETRYABLE = frozenset({429, 502, 503, 504})
_HINTS = {
    401: CREDENTIALS,
    403: CREDENTIALS,
    404: UNSUPPORTED,
    413: "raise the limit of the receiver for request bodies",
}
_NOT_OTLP = "is the endpoint an OTLP/HTTP receiver? It usually listens on port 4318"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """An answer. `headers` ignore case; `body` is None where it was too large to read."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def content_type(self) -> str:
        """The media type without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def result_of(reply: HttpReply, endpoint: str) -> ExportResult:
    """The result of a request that was answered with `reply`."""
    if 200 <= reply.status < 300:
        return _success(reply, endpoint)
    message = f"{endpoint}: HTTP {reply.status}"
    if 300 <= reply.status < 400:
        target = printable(reply.headers.get("location", "elsewhere"))
        return _rejected(f"{message}: redirected to {target}; set the endpoint to where it is")
    if text := _error_text(reply):
        message += f": {text}"
    if reply.status in _HINTS:
        message += f" ({_HINTS[reply.status]})"
    if reply.status not in _RETRYABLE:
        return _rejected(message)
    return ExportResult(
        outcome=Outcome.RETRYABLE,
        message=message,
        retry_after_s=_retry_after_s(reply.headers.get("retry-after", "")),
    )


def _success(reply: HttpReply, endpoint: str) -> ExportResult:
    message = f"{endpoint}: HTTP {reply.status}"
    if reply.body is None:
        return _rejected(f"{message} with more than {MAX_REPLY_BYTES} bytes; {_NOT_OTLP}")
    # Some receivers answer JSON whatever they were sent, and some nothing at all.
    try:
        if not reply.body:
            return ExportResult(outcome=Outcome.ACCEPTED)
        if reply.content_type == "application/json":
            response = _json_response(reply.body)
        elif reply.content_type in ("", PROTOBUF, "application/protobuf"):
            response = ExportProfilesServiceResponse.FromString(reply.body)
        else:
            kind = printable(reply.content_type)
            return _rejected(f"{message} with {kind}, which is no OTLP reply; {_NOT_OTLP}")
    except (DecodeError, json_format.ParseError, ValueError, RecursionError):
        return _rejected(f"{message} with a body that is no OTLP reply; {_NOT_OTLP}")
    return accepted(response)


def _json_response(body: bytes) -> ExportProfilesServiceResponse:
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    response = ExportProfilesServiceResponse()
    json_format.ParseDict(fields, response, ignore_unknown_fields=True)
    return response


def _error_text(reply: HttpReply) -> str:
    """What the receiver says is wrong: a Status in protobuf or JSON, or plain text."""
    body = reply.body or b""
    if reply.content_type == PROTOBUF:
        status = parse_status(body)
        return printable(status.message) if status is not None else ""
    text = body.decode("utf-8", "replace")
    if reply.content_type == "application/json":
        return printable(_json_message(text))
    return printable(text) if reply.content_type == "text/plain" else ""


def _json_message(text: str) -> str:
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return text
    message = status.get("message") if isinstance(status, dict) else None
    return message if isinstance(message, str) else text


def _retry_after_s(text: str) -> float | None:
    """Seconds from a Retry-After header, which holds these or a date; None where it is neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max((when - datetime.now(timezone.utc)).total_seconds(), 0.0)


def _rejected(message: str) -> ExportResult:
    return ExportResult(outcome=Outcome.REJECTED, message=message)
