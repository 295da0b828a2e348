"""OTLP over gRPC against real servers on the loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.any_pb2 import Any as ProtobufAny
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export import ExportResult, OtlpOptions, Outcome, open_exporter
from tests.unit.export.receivers import Authority, GrpcAnswer, grpc_receiver


def ok(context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
    """Full success."""
    return ExportProfilesServiceResponse()


def refusal(code: grpc.StatusCode, details: str, retry_after: Duration | None = None) -> GrpcAnswer:
    """An answer with an error status, and a RetryInfo if asked for."""

    def answer(context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
        if retry_after is not None:
            info = ProtobufAny()
            info.Pack(RetryInfo(retry_delay=retry_after))
            status = Status(code=code.value[0], message=details, details=[info])
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),)
            )
        context.abort(code, details)
        raise AssertionError("abort raises")

    return answer


def options(endpoint: str, **changes: object) -> OtlpOptions:
    """Plain-text options for `endpoint`."""
    given = {"plaintext": True, "timeout_s": 60.0, **changes}
    return OtlpOptions(protocol="grpc", endpoint=endpoint, **given)  # type: ignore[arg-type]


def export(request: ExportProfilesServiceRequest, given: OtlpOptions) -> ExportResult:
    """Export once with an exporter of its own."""
    exporter = open_exporter(given)
    try:
        return exporter.export(request)
    finally:
        exporter.close()


def test_request_arrives(request_: ExportProfilesServiceRequest) -> None:
    """The receiver gets the request, our headers and the schema version, each once."""
    with grpc_receiver(ok) as (endpoint, received):
        result = export(request_, options(endpoint, headers=(("x-scope-orgid", "7"),)))

    assert result == ExportResult(outcome=Outcome.ACCEPTED, size_bytes=request_.ByteSize())
    assert received.requests == [request_]
    assert received.headers[0]["x-scope-orgid"] == "7"
    assert received.headers[0]["otlp-profiles-development-version"] == "1"
    assert received.headers[0]["user-agent"].startswith("otel-gpuflame/")


def test_schema_version_is_ours_alone(request_: ExportProfilesServiceRequest) -> None:
    """A configured header cannot add a second version, which Collectors would refuse."""
    versions: list[str] = []

    def record(context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
        versions.extend(
            str(value)
            for key, value in context.invocation_metadata()
            if key == "otlp-profiles-development-version"
        )
        return ExportProfilesServiceResponse()

    with grpc_receiver(record) as (endpoint, _):
        export(request_, options(endpoint, headers=(("otlp-profiles-development-version", "9"),)))

    assert versions == ["1"]


def test_partial_success_is_reported(request_: ExportProfilesServiceRequest) -> None:
    """Rejected profiles are counted and the receiver's reason is passed on, without control codes."""
    reply = ExportProfilesServiceResponse()
    reply.partial_success.rejected_profiles = 2
    reply.partial_success.error_message = "too\x1b[31m old"

    with grpc_receiver(lambda _: reply) as (endpoint, received):
        result = export(request_, options(endpoint))

    assert (result.outcome, result.rejected_profiles) == (Outcome.PARTIAL, 2)
    assert result.message == "the receiver rejected 2 profiles: too [31m old"
    assert len(received.requests) == 1


def test_warning_of_the_receiver_is_kept(request_: ExportProfilesServiceRequest) -> None:
    """A message without rejected profiles is a warning on success."""
    reply = ExportProfilesServiceResponse()
    reply.partial_success.error_message = "deprecated"

    with grpc_receiver(lambda _: reply) as (endpoint, _):
        result = export(request_, options(endpoint))

    assert (result.outcome, result.message) == (Outcome.ACCEPTED, "deprecated")


def test_missing_service_names_the_feature_gate(request_: ExportProfilesServiceRequest) -> None:
    """A Collector without profiles answers UNIMPLEMENTED; the message says what to switch on."""
    unknown = refusal(grpc.StatusCode.UNIMPLEMENTED, "unknown service")

    with grpc_receiver(unknown) as (endpoint, received):
        result = export(request_, options(endpoint))

    assert result.outcome is Outcome.REJECTED
    assert "--feature-gates=+service.profilesSupport" in result.message
    assert "0.148" in result.message
    assert "pipeline" in result.message
    assert len(received.requests) == 1


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, Outcome.REJECTED),
        (grpc.StatusCode.UNAUTHENTICATED, Outcome.REJECTED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outcome.REJECTED),
        (grpc.StatusCode.INTERNAL, Outcome.REJECTED),
        (grpc.StatusCode.UNAVAILABLE, Outcome.RETRYABLE),
        (grpc.StatusCode.ABORTED, Outcome.RETRYABLE),
        (grpc.StatusCode.DATA_LOSS, Outcome.RETRYABLE),
    ],
)
@pytest.mark.usefixtures("one_attempt")
def test_status_decides_about_retries(
    code: grpc.StatusCode, outcome: Outcome, request_: ExportProfilesServiceRequest
) -> None:
    """Codes are classified as the OTLP specification lists them."""
    with grpc_receiver(refusal(code, "because")) as (endpoint, _):
        result = export(request_, options(endpoint))

    assert result.outcome is outcome
    assert f"{endpoint}: {code.name}: because" in result.message


def test_busy_receiver_is_asked_again(request_: ExportProfilesServiceRequest) -> None:
    """After the delay of a RetryInfo the same request is sent once more."""
    busy = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", Duration(nanos=20_000_000))

    with grpc_receiver(busy, ok) as (endpoint, received):
        result = export(request_, options(endpoint))

    assert (result.outcome, result.attempts) == (Outcome.ACCEPTED, 2)
    assert received.requests == [request_, request_]


def test_long_delay_is_reported(request_: ExportProfilesServiceRequest) -> None:
    """A RetryInfo beyond the timeout ends the export and is part of the result."""
    busy = refusal(grpc.StatusCode.UNAVAILABLE, "busy", Duration(seconds=90, nanos=500_000_000))

    with grpc_receiver(busy) as (endpoint, received):
        result = export(request_, options(endpoint))

    assert (result.outcome, result.retry_after_s) == (Outcome.RETRYABLE, 90.5)
    assert len(received.requests) == 1


def test_damaged_retry_info_is_ignored(request_: ExportProfilesServiceRequest) -> None:
    """Details that are no Status do not disturb the classification."""

    def answer(context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad")
        raise AssertionError("abort raises")

    with grpc_receiver(answer) as (endpoint, _):
        result = export(request_, options(endpoint))

    assert (result.outcome, result.retry_after_s) == (Outcome.REJECTED, None)


@pytest.mark.usefixtures("one_attempt")
def test_absent_receiver_is_retryable(request_: ExportProfilesServiceRequest) -> None:
    """Nobody listening is reported with the address and what to check."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        result = export(request_, options(endpoint))

    assert result.outcome is Outcome.RETRYABLE
    assert endpoint in result.message
    assert "check that a gRPC receiver listens there" in result.message


@pytest.mark.parametrize("reply", [b"\xff\xff\xff\xff", b"\x0a\x7f"])
def test_garbage_reply_is_a_rejection(reply: bytes, request_: ExportProfilesServiceRequest) -> None:
    """A reply that is no message becomes a result, not an exception."""
    with grpc_receiver(lambda _: reply) as (endpoint, _):
        result = export(request_, options(endpoint))

    assert result.outcome is Outcome.REJECTED
    assert endpoint in result.message


def test_oversized_reply_is_not_read(request_: ExportProfilesServiceRequest) -> None:
    """A reply over the bound ends as an error of the transport."""
    reply = ExportProfilesServiceResponse()
    reply.partial_success.error_message = "x" * 1_000_000

    with grpc_receiver(lambda _: reply) as (endpoint, _):
        result = export(request_, options(endpoint))

    assert result.outcome is Outcome.REJECTED
    assert "larger than max" in result.message


@contextmanager
def silent_listener() -> Iterator[str]:
    """A socket that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_silent_receiver_times_out(request_: ExportProfilesServiceRequest) -> None:
    """Without an answer the export ends at its timeout."""
    with silent_listener() as endpoint:
        result = export(request_, options(endpoint, timeout_s=0.2))

    assert result.outcome is Outcome.RETRYABLE


def test_close_ends_an_export_in_flight(request_: ExportProfilesServiceRequest) -> None:
    """Closing from another thread makes a waiting export return at once."""
    arrived = threading.Event()
    release = threading.Event()

    def wait(context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
        arrived.set()
        release.wait(300)
        return ExportProfilesServiceResponse()

    with grpc_receiver(wait) as (endpoint, _):
        exporter = open_exporter(options(endpoint, timeout_s=600.0))
        results: list[ExportResult] = []
        thread = threading.Thread(target=lambda: results.append(exporter.export(request_)))
        thread.start()
        assert arrived.wait(300)
        exporter.close()
        thread.join(300)
        assert not thread.is_alive()
        release.set()

    assert results[0].outcome is Outcome.RETRYABLE


def test_tls_is_verified(request_: ExportProfilesServiceRequest, authority: Authority) -> None:
    """A receiver whose authority is named is trusted; without naming it the export fails."""
    with grpc_receiver(ok, credentials=authority.server_credentials()) as (endpoint, received):
        trusted = export(
            request_, options(endpoint, plaintext=False, certificate_file=str(authority.ca))
        )
        untrusted = export(request_, options(endpoint, plaintext=False, timeout_s=1.0))

    assert trusted.outcome is Outcome.ACCEPTED
    assert untrusted.outcome is Outcome.RETRYABLE
    assert len(received.requests) == 1


def test_client_certificate_is_presented(
    request_: ExportProfilesServiceRequest, authority: Authority
) -> None:
    """A receiver that demands a client certificate gets the configured one."""
    credentials = authority.server_credentials(demand_client=True)
    with grpc_receiver(ok, credentials=credentials) as (endpoint, received):
        result = export(
            request_,
            options(
                endpoint,
                plaintext=False,
                certificate_file=str(authority.ca),
                client_key_file=str(authority.client_key),
                client_certificate_file=str(authority.client_certificate),
            ),
        )

    assert result.outcome is Outcome.ACCEPTED
    assert len(received.requests) == 1


def test_unreadable_certificate_is_named() -> None:
    """A file that is not there is an error before the first export."""
    given = options("127.0.0.1:1", plaintext=False, certificate_file="/nowhere/ca.pem")

    with pytest.raises(ExportError, match=r"/nowhere/ca\.pem.*OTEL_EXPORTER_OTLP_CERTIFICATE"):
        open_exporter(given)
