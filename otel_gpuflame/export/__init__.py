"""Profiles to the outside: OTLP over gRPC or HTTP, and files.

Opening an exporter may raise; `export` never does: what went wrong is in the result, because a failed
export must not stop the capture behind it.
"""

from __future__ import annotations

from typing import Protocol

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.export.options import OtlpOptions, otlp_options
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.retry import RetryingExporter

__all__ = ["ExportResult", "Exporter", "OtlpOptions", "Outcome", "open_exporter", "otlp_options"]


class Exporter(Protocol):
    """Sends requests to one receiver. One thread exports; `close` may be called from any."""

    def export(self, request: ExportProfilesServiceRequest) -> ExportResult:
        """Send `request`, trying again within the timeout where that may help. Never raises."""

    def close(self) -> None:
        """End the wait for a retry, let go of the connection; later exports are rejected."""


def open_exporter(options: OtlpOptions) -> Exporter:
    """The exporter for the protocol of `options`. Nothing is connected until the first export.

    Raises:
        ExportError: a certificate or key file cannot be used.
    """
    # Imported here, since loading grpcio takes a tenth of a second that HTTP needs not.
    if options.protocol == "grpc":
        from otel_gpuflame.export.grpc import GrpcTransport  # noqa: PLC0415

        return RetryingExporter(GrpcTransport(options), timeout_s=options.timeout_s)
    from otel_gpuflame.export.http import HttpTransport  # noqa: PLC0415

    return RetryingExporter(HttpTransport(options), timeout_s=options.timeout_s)
