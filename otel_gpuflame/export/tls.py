"""Reading the certificate and key files that options name, and finding out early if they are wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.options import OtlpOptions

_CA = "OTEL_EXPORTER_OTLP_CERTIFICATE"
_KEY = "OTEL_EXPORTER_OTLP_CLIENT_KEY"
_CHAIN = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"


def trusted_certificates(options: OtlpOptions) -> bytes | None:
    """The authorities to trust as PEM; None for the usual ones. Raises ExportError."""
    path = options.certificate_file
    if not path:
        return None
    data = _read(path, _CA)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise ExportError(f"{path}, given as {_CA}, holds no certificates in PEM") from error
    return data


def client_certificate(options: OtlpOptions) -> tuple[bytes, bytes] | None:
    """Private key and certificate chain as PEM; None without them. Raises ExportError."""
    key_path, chain_path = options.client_key_file, options.client_certificate_file
    if not key_path:
        return None
    key, chain = _read(key_path, _KEY), _read(chain_path, _CHAIN)
    try:
        # Without a password of ours, OpenSSL would ask for that of an encrypted key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(chain_path, key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ExportError(
            f"{key_path} and {chain_path}, given as {_KEY} and {_CHAIN}, are not an unencrypted "
            "private key and its certificate in PEM"
        ) from error
    return key, chain


def _read(path: str, variable: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {path}, given as {variable}: {error.strerror}") from error
