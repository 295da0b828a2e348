"""OTLP over HTTP with protobuf bodies."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.headers import USER_AGENT, request_headers
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.reply import (
    MAX_REPLY_BYTES,
    UNSUPPORTED,
    accepted,
    parse_status,
    printable,
)
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.tls import client_certificate, trusted_certificates

_PROTOBUF = "application/x-protobuf"
_RETRYABLE = frozenset({429, 502, 503, 504})
_CREDENTIALS = "check the credentials in OTEL_EXPORTER_OTLP_HEADERS"
_HINTS = {
    401: _CREDENTIALS,
    403: _CREDENTIALS,
    404: UNSUPPORTED,
    413: "raise the limit of the receiver for request bodies",
}
_NOT_OTLP = "is the endpoint an OTLP/HTTP receiver, which usually listens on port 4318?"


class HttpTransport:
    """Posts requests over kept connections. TLS is always verified, redirects are not followed."""

    def __init__(self, options: OtlpOptions) -> None:
        """Prepare the session; raises ExportError where a certificate or key cannot be used."""
        self._endpoint = options.endpoint
        self._compress = options.compression == "gzip"
        self._session = requests.Session()
        self._session.headers.update(dict(request_headers(options)))
        self._session.headers.update({"content-type": _PROTOBUF, "user-agent": USER_AGENT})
        # Without an `auth` of ours, requests would put credentials from ~/.netrc over our headers.
        self._session.auth = _keep_headers
        if trusted_certificates(options) is not None:
            self._session.verify = options.certificate_file
        if client_certificate(options) is not None:
            self._session.cert = (options.client_certificate_file, options.client_key_file)

    def send(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        """Send `request` once."""
        deadline = time.monotonic() + timeout_s
        body = request.SerializeToString()
        headers = {}
        if self._compress:
            body = gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)
            headers["content-encoding"] = "gzip"
        try:
            with self._session.post(
                self._endpoint,
                data=body,
                headers=headers,
                timeout=timeout_s,
                allow_redirects=False,
                stream=True,
            ) as response:
                return self._result(_read(response, deadline))
        except requests.exceptions.SSLError as error:
            return self._failure(
                Outcome.REJECTED,
                f"TLS: {_reason(error)} (the authority to trust is given with "
                "OTEL_EXPORTER_OTLP_CERTIFICATE)",
            )
        except requests.exceptions.Timeout:
            return self._failure(
                Outcome.RETRYABLE,
                f"no answer within {timeout_s:.3g} s (OTEL_EXPORTER_OTLP_TIMEOUT is in milliseconds)",
            )
        except (
            requests.exceptions.ConnectionError,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            return self._failure(Outcome.RETRYABLE, _reason(error))
