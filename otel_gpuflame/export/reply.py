"""What receivers answer, read the same way for gRPC and HTTP."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)

from otel_gpuflame.export.result import ExportResult, Outcome

MAX_REPLY_BYTES = 65_536
"""An OTLP reply is a few hundred bytes; more is not one, and is not read into memory."""

PROTOBUF = "application/x-protobuf"
CREDENTIALS = "check the credentials in OTEL_EXPORTER_OTLP_HEADERS"

_MAX_TEXT = 300

UNSUPPORTED = (
    "the receiver takes no profiles there. An OpenTelemetry Collector must be version 0.148 or "
    "later, started with --feature-gates=+service.profilesSupport, and have a `profiles` pipeline "
    "with this receiver under `service.pipelines`"
)


def accepted(response: ExportProfilesServiceResponse) -> ExportResult:
    """The result of a request that was answered with success, in full or in part."""
    partial = response.partial_success
    text = printable(partial.error_message)
    if partial.rejected_profiles > 0:
        reason = text or "no reason given"
        return ExportResult(
            outcome=Outcome.PARTIAL,
            message=f"the receiver rejected {partial.rejected_profiles} profiles: {reason}",
            rejected_profiles=partial.rejected_profiles,
        )
    return ExportResult(outcome=Outcome.ACCEPTED, message=text)


def parse_status(data: bytes) -> Status | None:
    """`data` as google.rpc.Status, None where it is something else."""
    try:
        return Status.FromString(data)
    except DecodeError:
        return None


def retry_delay_s(status: Status) -> float | None:
    """The delay that a RetryInfo in `status` asks for, in seconds; None without one."""
    info = RetryInfo()
    for detail in status.details:
        if detail.Is(RetryInfo.DESCRIPTOR):
            try:
                detail.Unpack(info)
            except DecodeError:
                return None
            delay_s: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
            return max(delay_s, 0.0)
    return None


def printable(text: str) -> str:
    """`text` from a receiver, short and without control characters: it goes into logs."""
    short = text[:_MAX_TEXT] + ("…" if len(text) > _MAX_TEXT else "")
    return "".join(c if c.isprintable() else " " for c in short).strip()
