"""OTLP over HTTP with protobuf bodies."""

from __future__ import annotations

import gzip
import ssl
import time

import requests
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.export.headers import USER_AGENT, request_headers
from otel_gpuflame.export.http_reply import HttpReply, result_of
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.reply import MAX_REPLY_BYTES, PROTOBUF, printable
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.tls import client_certificate, trusted_certificates

_GZIP_LEVEL = 1
"""A third of the time of level 6 for 3 % more bytes, measured on a request of 1.9 MB."""
_CHUNK_BYTES = 1024
_TLS_HINT = (
    "a receiver without TLS needs http:// in the endpoint; the file with the authority to trust is "
    "given as OTEL_EXPORTER_OTLP_CERTIFICATE"
)
_NO_TLS = "WRONG_VERSION_NUMBER"
"""What OpenSSL makes of an answer in plain text: letters, where the version of TLS should be."""
_CONNECTION_HINT = (
    "check that an OTLP/HTTP receiver listens there; for gRPC, which usually is on port 4317, set "
    "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
)


class HttpTransport:
    """Posts requests over kept connections. TLS is always verified, redirects are not followed."""

    def __init__(self, options: OtlpOptions) -> None:
        """Prepare the session; raises ExportError where a certificate or key cannot be used."""
        self._endpoint = options.endpoint
        self._compress = options.compression == "gzip"
        self._session = requests.Session()
        self._session.headers.update(dict(request_headers(options)))
        self._session.headers.update({"content-type": PROTOBUF, "user-agent": USER_AGENT})
        # Without an `auth` of ours, requests would put credentials from ~/.netrc over our headers.
        self._session.auth = _keep_headers
        self._verify: str | bool = True
        if trusted_certificates(options) is not None:
            self._verify = options.certificate_file
        if client_certificate(options) is not None:
            self._session.cert = (options.client_certificate_file, options.client_key_file)

    def send(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        """Send `request` once."""
        try:
            return result_of(self._post(request.SerializeToString(), timeout_s), self._endpoint)
        except requests.exceptions.SSLError as error:
            outcome = Outcome.REJECTED if _is_for_good(error) else Outcome.RETRYABLE
            return self._failure(outcome, f"TLS: {_reason(error)} ({_TLS_HINT})")
        except requests.exceptions.Timeout:
            message = (
                f"no answer within {timeout_s:.3g} s "
                "(OTEL_EXPORTER_OTLP_TIMEOUT is in milliseconds)"
            )
            return self._failure(Outcome.RETRYABLE, message)
        except (
            requests.exceptions.ConnectionError,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            return self._failure(Outcome.RETRYABLE, f"{_reason(error)} ({_CONNECTION_HINT})")
        except requests.exceptions.RequestException as error:
            return self._failure(Outcome.REJECTED, _reason(error))
        except OSError as error:
            # A file with a certificate or key is not there: it was when this began, and is being replaced.
            return self._failure(Outcome.RETRYABLE, _reason(error))

    def close(self) -> None:
        """Close idle connections; a request in flight ends at its timeout."""
        self._session.close()

    def _post(self, body: bytes, timeout_s: float) -> HttpReply:
        deadline = time.monotonic() + timeout_s
        headers = {}
        if self._compress:
            body = gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)
            headers["content-encoding"] = "gzip"
        with self._session.post(
            self._endpoint,
            data=body,
            headers=headers,
            timeout=timeout_s,
            verify=self._verify,
            allow_redirects=False,
            stream=True,
        ) as response:
            return HttpReply(
                status=response.status_code,
                headers=response.headers,
                body=_read(response, deadline),
            )

    def _failure(self, outcome: Outcome, message: str) -> ExportResult:
        return ExportResult(outcome=outcome, message=f"{self._endpoint}: {message}")


def _read(response: requests.Response, deadline: float) -> bytes | None:
    """The body, None where it is larger than a reply of OTLP can be."""
    body = b""
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_REPLY_BYTES:
            return None
        if time.monotonic() > deadline:
            raise requests.exceptions.ReadTimeout
    return body


def _keep_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_for_good(error: requests.exceptions.SSLError) -> bool:
    """Whether TLS fails until settings change: an authority that is not trusted, or a receiver without TLS.

    Anything else passes: a load balancer that restarts hangs up in the middle of a handshake.
    """
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return True
    return isinstance(cause, ssl.SSLError) and cause.reason == _NO_TLS


def _reason(error: Exception) -> str:
    cause = _cause(error)
    return printable(str(cause) or type(cause).__name__)


def _cause(error: Exception) -> BaseException:
    """The innermost: what wraps it repeats the URL and the names of internal objects."""
    cause: BaseException = error
    while (inner := _inner(cause)) is not None:
        cause = inner
    return cause


def _inner(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    for candidate in (reason, *error.args):
        if isinstance(candidate, BaseException):
            return candidate
    return None
