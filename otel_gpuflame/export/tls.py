"""Reading the certificate and key files that options name."""

from __future__ import annotations

from pathlib import Path

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.options import OtlpOptions


def trusted_certificates(options: OtlpOptions) -> bytes | None:
    """The authorities to trust as PEM; None for the usual ones. Raises ExportError."""
    if not options.certificate_file:
        return None
    return _read_pem(options.certificate_file, "OTEL_EXPORTER_OTLP_CERTIFICATE")


def client_certificate(options: OtlpOptions) -> tuple[bytes, bytes] | None:
    """Private key and certificate chain as PEM; None without them. Raises ExportError."""
    if not options.client_key_file:
        return None
    return (
        _read_pem(options.client_key_file, "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        _read_pem(options.client_certificate_file, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
    )


def _read_pem(path: str, variable: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {path}, given as {variable}: {error.strerror}") from error
    if b"-----BEGIN " not in data:
        raise ExportError(f"{path}, given as {variable}, is not a PEM file")
    return data
