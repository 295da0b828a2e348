"""OTLP over HTTP against real servers on the loopback."""

from __future__ import annotations

import socket
import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export import ExportResult, OtlpOptions, Outcome, open_exporter
from otel_gpuflame.export.http_reply import HttpReply, result_of
from tests.unit.export.receivers import Answer, Authority, http_receiver

PATH = "/v1development/profiles"


def options(host: str, *, scheme: str = "http", **changes: object) -> OtlpOptions:
    """Options for a receiver at `host`."""
    given = {"plaintext": scheme == "http", "timeout_s": 60.0, **changes}
    return OtlpOptions(
        protocol="http/protobuf",
        endpoint=f"{scheme}://{host}{PATH}",
        **given,  # type: ignore[arg-type]
    )


def export(request: ExportProfilesServiceRequest, given: OtlpOptions) -> ExportResult:
    """Export once with an exporter of its own."""
    exporter = open_exporter(given)
    try:
        return exporter.export(request)
    finally:
        exporter.close()


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_request_arrives(compression: str, request_: ExportProfilesServiceRequest) -> None:
    """The receiver gets the request at its path, compressed as configured, with all headers."""
    with http_receiver(Answer()) as (host, received):
        result = export(
            request_, options(host, compression=compression, headers=(("x-scope-orgid", "7"),))
        )

    assert result == ExportResult(outcome=Outcome.ACCEPTED, size_bytes=request_.ByteSize())
    assert received.requests == [request_]
    assert received.paths == [PATH]
    headers = received.headers[0]
    assert headers["content-type"] == "application/x-protobuf"
    assert headers.get("content-encoding", "none") == compression
    assert headers["otlp-profiles-development-version"] == "1"
    assert headers["x-scope-orgid"] == "7"
    assert headers["user-agent"].startswith("otel-gpuflame/")


def test_netrc_does_not_replace_credentials(
    request_: ExportProfilesServiceRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configured credentials are sent also where ~/.netrc knows the host."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))

    with http_receiver(Answer()) as (host, received):
        export(request_, options(host, headers=(("authorization", "Bearer ours"),)))

    assert received.headers[0]["authorization"] == "Bearer ours"


def test_partial_success_is_reported(request_: ExportProfilesServiceRequest) -> None:
    """Rejected profiles are counted and the receiver's reason is passed on."""
    reply = ExportProfilesServiceResponse()
    reply.partial_success.rejected_profiles = 3
    reply.partial_success.error_message = "too old"

    with http_receiver(Answer(body=reply.SerializeToString())) as (host, received):
        result = export(request_, options(host))

    assert (result.outcome, result.rejected_profiles) == (Outcome.PARTIAL, 3)
    assert "too old" in result.message
    assert len(received.requests) == 1


def test_missing_path_names_the_feature_gate(request_: ExportProfilesServiceRequest) -> None:
    """A Collector without profiles answers 404; the message says what to switch on."""
    with http_receiver(Answer(404, b"404 page not found", "text/plain")) as (host, received):
        result = export(request_, options(host))

    assert result.outcome is Outcome.REJECTED
    assert "--feature-gates=+service.profilesSupport" in result.message
    assert "0.148" in result.message
    assert "pipeline" in result.message
    assert len(received.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_receiver_is_asked_again(status: int, request_: ExportProfilesServiceRequest) -> None:
    """After the delay of Retry-After the same request is sent once more."""
    busy = Answer(status, headers=(("retry-after", "0"),))

    with http_receiver(busy, Answer()) as (host, received):
        result = export(request_, options(host))

    assert (result.outcome, result.attempts) == (Outcome.ACCEPTED, 2)
    assert received.requests == [request_, request_]


def test_long_delay_is_reported(request_: ExportProfilesServiceRequest) -> None:
    """A Retry-After beyond the timeout ends the export and is part of the result."""
    with http_receiver(Answer(503, headers=(("retry-after", "120"),))) as (host, received):
        result = export(request_, options(host))

    assert (result.outcome, result.retry_after_s) == (Outcome.RETRYABLE, 120.0)
    assert len(received.requests) == 1


def test_redirect_is_not_followed(request_: ExportProfilesServiceRequest) -> None:
    """Profiles go where they are sent to and nowhere else; the message names the other place."""
    moved = Answer(307, headers=(("location", "http://127.0.0.1:1/elsewhere"),))

    with http_receiver(moved) as (host, received):
        result = export(request_, options(host))

    assert result.outcome is Outcome.REJECTED
    assert "http://127.0.0.1:1/elsewhere" in result.message
    assert len(received.requests) == 1


def test_oversized_reply_is_not_read(request_: ExportProfilesServiceRequest) -> None:
    """More bytes than any OTLP reply has are left unread."""
    with http_receiver(Answer(body=b"x" * 1_000_000)) as (host, _):
        result = export(request_, options(host))

    assert result.outcome is Outcome.REJECTED
    assert "more than 65536 bytes" in result.message


@pytest.mark.usefixtures("one_attempt")
def test_absent_receiver_is_retryable(request_: ExportProfilesServiceRequest) -> None:
    """Nobody listening is reported with the address and the cause."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        result = export(request_, options(host))

    assert result.outcome is Outcome.RETRYABLE
    assert host in result.message
    assert "refused" in result.message
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in result.message


def test_silent_receiver_times_out(request_: ExportProfilesServiceRequest) -> None:
    """Without an answer the export ends at its timeout, and says in which unit that is set."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = export(request_, options(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2))

    assert result.outcome is Outcome.RETRYABLE
    assert "milliseconds" in result.message


@pytest.mark.parametrize(
    "spoken",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"],
)
def test_server_of_another_kind_is_no_exception(
    spoken: bytes, request_: ExportProfilesServiceRequest
) -> None:
    """A server that speaks something else, or hangs up, gives a result that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100_000)
                connection.sendall(spoken)

        thread = threading.Thread(target=serve)
        thread.start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        result = export(request_, options(host, timeout_s=0.4))
        thread.join()

    assert result.outcome in (Outcome.RETRYABLE, Outcome.REJECTED)
    assert host in result.message


def test_proxy_of_the_environment_is_used(
    request_: ExportProfilesServiceRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With http_proxy set, the request goes to the proxy under its full URL."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with http_receiver(Answer()) as (host, received):
        monkeypatch.setenv("http_proxy", f"http://{host}")
        result = export(request_, options("collector.invalid:4318"))

    assert result.outcome is Outcome.ACCEPTED
    assert received.paths == [f"http://collector.invalid:4318{PATH}"]


def test_tls_is_verified(request_: ExportProfilesServiceRequest, authority: Authority) -> None:
    """A receiver whose authority is named is trusted; otherwise the message says how to name it."""
    with http_receiver(Answer(), tls=authority.server_context()) as (host, received):
        trusted = export(
            request_, options(host, scheme="https", certificate_file=str(authority.ca))
        )
        untrusted = export(request_, options(host, scheme="https"))

    assert trusted.outcome is Outcome.ACCEPTED
    assert untrusted.outcome is Outcome.REJECTED
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in untrusted.message
    assert "certificate verify failed" in untrusted.message
    assert len(received.requests) == 1


def test_https_to_a_plain_receiver_is_explained(request_: ExportProfilesServiceRequest) -> None:
    """A receiver without TLS behind an https:// endpoint gives a message that says so."""
    with http_receiver(Answer()) as (host, _):
        result = export(request_, options(host, scheme="https"))

    assert result.outcome is Outcome.REJECTED
    assert "needs http://" in result.message


def test_a_handshake_that_is_cut_off_is_tried_again(
    request_: ExportProfilesServiceRequest, authority: Authority
) -> None:
    """A load balancer that restarts closes its connections in order; OTLP has such a request sent once more."""
    with http_receiver(Answer(), tls=authority.server_context(), hang_ups=1) as (host, received):
        result = export(request_, options(host, scheme="https", certificate_file=str(authority.ca)))

    assert (result.outcome, result.attempts) == (Outcome.ACCEPTED, 2)
    assert received.requests == [request_]


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    ("spoken", "reason"),
    [(b"", "EOF"), (b"\x15\x03\x03\x00\x02\x02\x50", "internal error")],
    ids=["end", "alert"],
)
def test_trouble_of_a_tls_server_is_retryable(
    spoken: bytes, reason: str, request_: ExportProfilesServiceRequest
) -> None:
    """What the server may get over by itself costs no profile; the message names the cause."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100_000)
                connection.sendall(spoken)

        thread = threading.Thread(target=serve)
        thread.start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        result = export(request_, options(host, scheme="https"))
        thread.join()

    assert result.outcome is Outcome.RETRYABLE
    assert host in result.message
    assert reason in result.message


def test_client_certificate_is_presented(
    request_: ExportProfilesServiceRequest, authority: Authority
) -> None:
    """A receiver that demands a client certificate gets the configured one."""
    tls = authority.server_context(demand_client=True)
    with http_receiver(Answer(), tls=tls) as (host, received):
        result = export(
            request_,
            options(
                host,
                scheme="https",
                certificate_file=str(authority.ca),
                client_key_file=str(authority.client_key),
                client_certificate_file=str(authority.client_certificate),
            ),
        )

    assert result.outcome is Outcome.ACCEPTED
    assert len(received.requests) == 1


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("name", ["ca", "client_key", "client_certificate"])
@pytest.mark.parametrize("left", [None, b""], ids=["gone", "empty"])
def test_a_file_that_is_being_replaced_costs_no_profile(
    left: bytes | None,
    name: str,
    request_: ExportProfilesServiceRequest,
    tmp_path: Path,
    authority: Authority,
) -> None:
    """Certificates are renewed while the agent runs: in between there is no file, or a part of one."""
    files = {}
    for each in ("ca", "client_key", "client_certificate"):
        files[each] = tmp_path / each
        files[each].write_bytes(getattr(authority, each).read_bytes())
    tls = authority.server_context(demand_client=True)
    with http_receiver(Answer(), tls=tls) as (host, received):
        exporter = open_exporter(
            options(
                host,
                scheme="https",
                certificate_file=str(files["ca"]),
                client_key_file=str(files["client_key"]),
                client_certificate_file=str(files["client_certificate"]),
            )
        )
        whole = files[name].read_bytes()
        files[name].unlink()
        if left is not None:
            files[name].write_bytes(left)
        meanwhile = exporter.export(request_)
        files[name].write_bytes(whole)
        afterwards = exporter.export(request_)
        exporter.close()

    assert (meanwhile.outcome, meanwhile.attempts) == (Outcome.RETRYABLE, 1)
    assert afterwards.outcome is Outcome.ACCEPTED
    assert received.requests == [request_]


@pytest.mark.parametrize("field", ["certificate_file", "client_key_file"])
def test_file_that_is_no_pem_is_named(field: str, tmp_path: Path) -> None:
    """A file with other content is an error before the first export."""
    path = tmp_path / "odd.pem"
    path.write_text("not PEM")
    files = {field: str(path), "client_certificate_file": str(path)}

    with pytest.raises(ExportError, match="in PEM"):
        open_exporter(options("127.0.0.1:1", scheme="https", **files))


def reply(status: int, body: bytes | None, content_type: str, **headers: str) -> ExportResult:
    """The result of an answer, without a server."""
    fields = {"content-type": content_type} | {k.replace("_", "-"): v for k, v in headers.items()}
    return result_of(HttpReply(status=status, headers=fields, body=body), "http://c:4318")


PROTOBUF = "application/x-protobuf"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/x-protobuf"),
        (b"", "text/plain"),
        (b"{}", "application/json"),
        (b'{"partialSuccess":{}}', "application/json; charset=utf-8"),
    ],
)
def test_forms_of_success(body: bytes, content_type: str) -> None:
    """An empty answer and one in JSON count as success too: receivers send both."""
    assert reply(200, body, content_type).outcome is Outcome.ACCEPTED


def test_partial_success_in_json() -> None:
    """JSON writes 64-bit numbers as strings."""
    body = b'{"partialSuccess":{"rejectedProfiles":"4","errorMessage":"why"}}'

    result = reply(200, body, "application/json")

    assert (result.outcome, result.rejected_profiles) == (Outcome.PARTIAL, 4)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\xff\xff\xff", PROTOBUF),
        (b"<html>Welcome</html>", "text/html"),
        (b"{", "application/json"),
        (b"\xff", "application/json"),
        (b"[]", "application/json"),
        (b"[" * 60_000, "application/json"),
        (None, PROTOBUF),
    ],
)
def test_success_of_something_else(body: bytes | None, content_type: str) -> None:
    """A web server that says 200 to everything is not taken for a receiver."""
    result = reply(200, body, content_type)

    assert result.outcome is Outcome.REJECTED
    assert "OTLP/HTTP receiver" in result.message


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.REJECTED),
        (401, Outcome.REJECTED),
        (413, Outcome.REJECTED),
        (500, Outcome.REJECTED),
        (429, Outcome.RETRYABLE),
        (502, Outcome.RETRYABLE),
        (503, Outcome.RETRYABLE),
        (504, Outcome.RETRYABLE),
    ],
)
def test_status_decides_about_retries(status: int, outcome: Outcome) -> None:
    """Statuses are classified as the OTLP specification lists them."""
    assert reply(status, b"", PROTOBUF).outcome is outcome


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (Status(message="bad index").SerializeToString(), PROTOBUF, "bad index"),
        (b'{"code":3,"message":"bad index"}', "application/json", "bad index"),
        (b'["odd"]', "application/json", '["odd"]'),
        (b"not json", "application/json", "not json"),
        (b"[" * 60_000, "application/json", "[" * 300 + "…"),
        (b"bad\nindex", "text/plain", "bad index"),
        (b"x" * 400, "text/plain", "x" * 300 + "…"),
    ],
)
def test_reason_is_passed_on(body: bytes, content_type: str, text: str) -> None:
    """What the receiver says is in the message, short and printable."""
    assert reply(400, body, content_type).message == f"http://c:4318: HTTP 400: {text}"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"\xff\xff\xff", PROTOBUF), (b"<html>", "text/html"), (None, PROTOBUF)],
)
def test_unreadable_reason_is_left_out(body: bytes | None, content_type: str) -> None:
    """Damaged and foreign error bodies do not end up in the message."""
    assert reply(400, body, content_type).message == "http://c:4318: HTTP 400"


def test_retry_after_as_a_date() -> None:
    """The header may hold a date; one in the past means at once."""
    future = datetime.now(timezone.utc) + timedelta(hours=1)
    delay_s = reply(
        503, b"", PROTOBUF, retry_after=format_datetime(future, usegmt=True)
    ).retry_after_s
    past = reply(503, b"", PROTOBUF, retry_after="Wed, 21 Oct 2015 07:28:00 GMT").retry_after_s

    assert delay_s is not None
    assert 3_000 < delay_s <= 3_600
    assert past == 0.0


@pytest.mark.parametrize(
    "text", ["soon", "", "-5", "1e9", "Wed, 21 Oct 2015 07:28:00 +99999999999999"]
)
def test_unreadable_retry_after_is_ignored(text: str) -> None:
    """What is neither seconds nor a date leaves the delay to us."""
    assert reply(503, b"", PROTOBUF, retry_after=text).retry_after_s is None
