"""Our options as the arguments of the SDK's OTLP exporters: the same ones for metrics and logs.

grpcio and requests are imported where needed: loading grpcio takes a tenth of a second that HTTP needs not.
"""

from __future__ import annotations

from typing import Any

from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.tls import client_certificate, trusted_certificates


def grpc_arguments(options: OtlpOptions) -> dict[str, Any]:
    """For OTLP over gRPC. Raises ExportError for certificates that cannot be read."""
    import grpc  # noqa: PLC0415

    from otel_gpuflame.export.grpc import channel_credentials  # noqa: PLC0415

    is_gzip = options.compression == "gzip"
    return {
        "endpoint": options.endpoint,
        "insecure": options.plaintext,
        "credentials": None if options.plaintext else channel_credentials(options),
        "headers": options.headers,
        "timeout": options.timeout_s,
        "compression": grpc.Compression.Gzip if is_gzip else grpc.Compression.NoCompression,
    }


def http_arguments(options: OtlpOptions) -> dict[str, Any]:
    """For OTLP over HTTP. Raises ExportError for certificates that cannot be read."""
    from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415

    # The SDK would find out at the first export.
    trusted_certificates(options)
    client_certificate(options)
    is_gzip = options.compression == "gzip"
    return {
        "endpoint": options.endpoint,
        "certificate_file": options.certificate_file or None,
        "client_key_file": options.client_key_file or None,
        "client_certificate_file": options.client_certificate_file or None,
        "headers": dict(options.headers),
        "timeout": options.timeout_s,
        "compression": Compression.Gzip if is_gzip else Compression.NoCompression,
    }
