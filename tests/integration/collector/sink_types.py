# SPDX-License-Identifier: Apache-2.0
"""What the OTLP sink keeps of a request, and what it can be told to answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

__all__ = [
    "GRPC_METHODS",
    "HTTP_PATHS",
    "OK",
    "AnswerFunction",
    "DecodeError",
    "Received",
    "Reply",
    "Signal",
    "Transport",
    "decode",
    "success_body",
]

Transport: TypeAlias = Literal["grpc", "http"]
Signal: TypeAlias = Literal["profiles", "traces", "metrics", "logs"]
Request: TypeAlias = (
    ExportProfilesServiceRequest
    | ExportTraceServiceRequest
    | ExportMetricsServiceRequest
    | ExportLogsServiceRequest
)
Metadata: TypeAlias = tuple[tuple[str, "str | bytes"], ...]

GRPC_METHODS: dict[str, Signal] = {
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export": "profiles",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
}
HTTP_PATHS: dict[str, Signal] = {
    "/v1development/profiles": "profiles",
    "/v1/traces": "traces",
    "/v1/metrics": "metrics",
    "/v1/logs": "logs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request. `body` is the protobuf after decompression; header names are lower case."""

    transport: Transport
    signal: Signal
    metadata: Metadata
    body: bytes
    message: Request | None

    @property
    def profiles(self) -> ExportProfilesServiceRequest:
        """The decoded profiles request; raises `TypeError` for anything else."""
        if not isinstance(self.message, ExportProfilesServiceRequest):
            raise TypeError(f"not a profiles request but {type(self.message).__name__}")
        return self.message

    @property
    def traces(self) -> ExportTraceServiceRequest:
        """The decoded trace request; raises `TypeError` for anything else."""
        if not isinstance(self.message, ExportTraceServiceRequest):
            raise TypeError(f"not a trace request but {type(self.message).__name__}")
        return self.message

    @property
    def metrics(self) -> ExportMetricsServiceRequest:
        """The decoded metrics request; raises `TypeError` for anything else."""
        if not isinstance(self.message, ExportMetricsServiceRequest):
            raise TypeError(f"not a metrics request but {type(self.message).__name__}")
        return self.message

    @property
    def logs(self) -> ExportLogsServiceRequest:
        """The decoded logs request; raises `TypeError` for anything else."""
        if not isinstance(self.message, ExportLogsServiceRequest):
            raise TypeError(f"not a logs request but {type(self.message).__name__}")
        return self.message

    def header(self, name: str) -> tuple[str | bytes, ...]:
        """Every value of one metadata key or HTTP header, by its lower-case name."""
        return tuple(value for key, value in self.metadata if key == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer; each transport reads the fields that concern it.

    `rejected` and a `message` beside success make a partial success. `body` replaces the whole
    response message, for answers that are no OTLP. `retry_after_s` is the `Retry-After` header in
    HTTP and `RetryInfo` in gRPC. `delay_s` comes before the answer and ends when the sink closes.
    """

    grpc_code: grpc.StatusCode = grpc.StatusCode.OK
    http_status: int = 200
    message: str = ""
    rejected: int = 0
    body: bytes | None = None
    http_headers: tuple[tuple[str, str], ...] = ()
    retry_after_s: int | None = None
    delay_s: float = 0.0

    @staticmethod
    def invalid(message: str) -> Reply:
        """Refused for good: INVALID_ARGUMENT, HTTP 400."""
        return Reply(grpc_code=grpc.StatusCode.INVALID_ARGUMENT, http_status=400, message=message)

    @staticmethod
    def unavailable(message: str = "try again", *, retry_after_s: int | None = None) -> Reply:
        """Refused for now: UNAVAILABLE, HTTP 503."""
        return Reply(
            grpc_code=grpc.StatusCode.UNAVAILABLE,
            http_status=503,
            message=message,
            retry_after_s=retry_after_s,
        )

    def status_body(self) -> bytes:
        """`google.rpc.Status`: the body of a failed OTLP/HTTP reply, and gRPC's status details."""
        status = status_pb2.Status(code=self.grpc_code.value[0], message=self.message)
        if self.retry_after_s is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.seconds = self.retry_after_s
            status.details.add().Pack(retry)
        return bytes(status.SerializeToString())


OK = Reply()
AnswerFunction: TypeAlias = Callable[[Transport, Signal, bytes, Metadata], Reply]
"""Keeps a request and says what to answer; called from many threads."""


def decode(signal: Signal, body: bytes) -> Request:
    """Parse one request; raises `DecodeError`."""
    if signal == "profiles":
        return ExportProfilesServiceRequest.FromString(body)
    if signal == "metrics":
        return ExportMetricsServiceRequest.FromString(body)
    if signal == "logs":
        return ExportLogsServiceRequest.FromString(body)
    return ExportTraceServiceRequest.FromString(body)


def success_body(signal: Signal, reply: Reply) -> bytes:
    """The response message of a reply that is a success, whole or partial."""
    if reply.body is not None:
        return reply.body
    if signal == "profiles":
        profiles = ExportProfilesServiceResponse()
        if reply.rejected or reply.message:
            profiles.partial_success.rejected_profiles = reply.rejected
            profiles.partial_success.error_message = reply.message
        return profiles.SerializeToString()
    if signal == "metrics":
        metrics = ExportMetricsServiceResponse()
        if reply.rejected or reply.message:
            metrics.partial_success.rejected_data_points = reply.rejected
            metrics.partial_success.error_message = reply.message
        return metrics.SerializeToString()
    if signal == "logs":
        logs = ExportLogsServiceResponse()
        if reply.rejected or reply.message:
            logs.partial_success.rejected_log_records = reply.rejected
            logs.partial_success.error_message = reply.message
        return logs.SerializeToString()
    traces = ExportTraceServiceResponse()
    if reply.rejected or reply.message:
        traces.partial_success.rejected_spans = reply.rejected
        traces.partial_success.error_message = reply.message
    return traces.SerializeToString()
