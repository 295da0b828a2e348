"""OTLP over gRPC."""

from __future__ import annotations

import grpc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2_grpc import (
    ProfilesServiceStub,
)

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.headers import USER_AGENT, request_headers
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.reply import (
    CREDENTIALS,
    MAX_REPLY_BYTES,
    UNSUPPORTED,
    accepted,
    parse_status,
    printable,
    retry_delay_s,
)
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.tls import client_certificate, trusted_certificates

# As the OTLP specification lists them. RESOURCE_EXHAUSTED joins them if it brings a RetryInfo.
_RETRYABLE = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_HINTS = {
    grpc.StatusCode.UNIMPLEMENTED: UNSUPPORTED,
    grpc.StatusCode.UNAUTHENTICATED: CREDENTIALS,
    grpc.StatusCode.PERMISSION_DENIED: CREDENTIALS,
    grpc.StatusCode.DEADLINE_EXCEEDED: "OTEL_EXPORTER_OTLP_TIMEOUT is in milliseconds",
    grpc.StatusCode.UNAVAILABLE: (
        "check that a gRPC receiver listens there, and that http:// or https:// in the endpoint "
        "says rightly whether it speaks TLS"
    ),
}
_STATUS_DETAILS = "grpc-status-details-bin"


class GrpcTransport:
    """Sends requests over one channel. TLS is always verified."""

    def __init__(self, options: OtlpOptions) -> None:
        """Prepare the channel; raises ExportError where a certificate or key cannot be used."""
        self._endpoint = options.endpoint
        self._channel = _channel(options)
        self._stub = ProfilesServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = request_headers(options)
        self._compression = (
            grpc.Compression.Gzip
            if options.compression == "gzip"
            else grpc.Compression.NoCompression
        )

    def send(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        """Send `request` once."""
        try:
            response = self._stub.Export(
                request,
                timeout=timeout_s,
                metadata=self._metadata,
                compression=self._compression,
            )
        except grpc.RpcError as error:
            return self._failure(error)
        return accepted(response)

    def close(self) -> None:
        """Close the channel; a call in flight ends as cancelled."""
        self._channel.close()

    def _failure(self, error: grpc.RpcError) -> ExportResult:
        code = error.code()
        delay_s = _retry_after_s(error)
        is_retryable = code in _RETRYABLE or (
            code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay_s is not None
        )
        message = f"{self._endpoint}: {code.name}: {printable(error.details() or '')}"
        if code in _HINTS:
            message += f" ({_HINTS[code]})"
        return ExportResult(
            outcome=Outcome.RETRYABLE if is_retryable else Outcome.REJECTED,
            message=message,
            retry_after_s=delay_s if is_retryable else None,
        )


def _channel(options: OtlpOptions) -> grpc.Channel:
    settings = [
        ("grpc.primary_user_agent", USER_AGENT),
        ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ]
    if options.plaintext:
        return grpc.insecure_channel(options.endpoint, options=settings)
    try:
        credentials = channel_credentials(options)
        return grpc.secure_channel(options.endpoint, credentials, options=settings)
    except (TypeError, ValueError) as error:
        raise ExportError(f"cannot set up TLS for {options.endpoint}: {error}") from error


def channel_credentials(options: OtlpOptions) -> grpc.ChannelCredentials:
    """What to trust and who we are. Raises ExportError where a certificate or key cannot be used."""
    key, certificate = client_certificate(options) or (None, None)
    return grpc.ssl_channel_credentials(
        root_certificates=trusted_certificates(options),
        private_key=key,
        certificate_chain=certificate,
    )


def _retry_after_s(error: grpc.RpcError) -> float | None:
    for item in error.trailing_metadata() or ():
        if item.key == _STATUS_DETAILS and isinstance(item.value, bytes):
            status = parse_status(item.value)
            return retry_delay_s(status) if status is not None else None
    return None
