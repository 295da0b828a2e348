"""The receiver is sent a profile, and its answer becomes a check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from otel_gpuflame.capture.checks.result import Check, Status
from otel_gpuflame.doctor.collector import SERVICE_NAME, check_collector, one_sample
from otel_gpuflame.export import ExportResult, OtlpOptions, Outcome
from tests.contract.conformance import violations
from tests.unit.export.receivers import Answer, Received, grpc_receiver, http_receiver

NOW_NS = 1_750_000_000_000_000_000


def accept(_context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
    """All is well."""
    return ExportProfilesServiceResponse()


def answer(code: grpc.StatusCode, text: str) -> Callable[[grpc.ServicerContext], bytes]:
    """A refusal."""

    def refuse(context: grpc.ServicerContext) -> bytes:
        context.abort(code, text)
        raise AssertionError("abort raises")

    return refuse


def ask(receiver: AbstractContextManager[tuple[str, Received]]) -> tuple[Check, Received]:
    """Check a gRPC receiver."""
    with receiver as (address, received):
        options = OtlpOptions(protocol="grpc", endpoint=address, plaintext=True, timeout_s=60.0)
        return check_collector(options, clock_ns=lambda: NOW_NS), received


def test_a_receiver_that_takes_profiles_passes() -> None:
    """It gets exactly one, with the time of now."""
    result, received = ask(grpc_receiver(accept))
    assert result.status is Status.OK, result
    (request,) = received.requests
    assert request == one_sample(NOW_NS)


def test_http_receivers_are_asked_too() -> None:
    """By the protocol that the options name."""
    with http_receiver(Answer()) as (address, received):
        url = f"http://{address}/v1development/profiles"
        options = OtlpOptions(protocol="http/protobuf", endpoint=url, plaintext=True)
        assert check_collector(options).status is Status.OK
    assert received.paths == ["/v1development/profiles"]


def test_a_receiver_without_the_feature_gate_is_told_apart() -> None:
    """UNIMPLEMENTED is what a Collector without the gate answers."""
    unknown = "unknown service opentelemetry.proto.collector.profiles.v1development.ProfilesService"
    result, _ = ask(grpc_receiver(answer(grpc.StatusCode.UNIMPLEMENTED, unknown)))
    assert result.status is Status.FAIL
    assert "--feature-gates=+service.profilesSupport" in result.detail
    assert "0.148 or newer" in result.remedy


def test_a_receiver_that_drops_the_profile_is_a_warning() -> None:
    """It is there, and says why."""

    def reject(_context: grpc.ServicerContext) -> ExportProfilesServiceResponse:
        reply = ExportProfilesServiceResponse()
        reply.partial_success.rejected_profiles = 1
        reply.partial_success.error_message = "too old"
        return reply

    result, _ = ask(grpc_receiver(reject))
    assert result.status is Status.WARN
    assert "too old" in result.detail
    assert result.remedy


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "OTEL_EXPORTER_OTLP_HEADERS"),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    ],
)
def test_refusals_are_passed_on(code: grpc.StatusCode, says: str) -> None:
    """With what the exporter knows about them."""
    result, _ = ask(grpc_receiver(answer(code, "no")))
    assert result.status is Status.FAIL
    assert says in result.detail


def test_nobody_listening_fails() -> None:
    """Within the time that a check may take."""
    with grpc_receiver(accept) as (address, _):
        closed = address
    options = OtlpOptions(protocol="grpc", endpoint=closed, plaintext=True, timeout_s=0.4)
    result = check_collector(options)
    assert result.status is Status.FAIL
    assert closed in result.detail


def test_a_certificate_that_cannot_be_read_fails(tmp_path: Path) -> None:
    """The exporter's own message names the file."""
    options = OtlpOptions(
        protocol="grpc",
        endpoint="127.0.0.1:1",
        plaintext=False,
        certificate_file=str(tmp_path / "missing.pem"),
    )
    result = check_collector(options)
    assert result.status is Status.FAIL
    assert "missing.pem" in result.detail


def test_the_exporter_is_closed_and_does_not_wait_long() -> None:
    """Whatever timeout is configured."""

    class Silent:
        closed = False

        def export(self, _request: ExportProfilesServiceRequest) -> ExportResult:
            return ExportResult(outcome=Outcome.RETRYABLE)

        def close(self) -> None:
            self.closed = True

    silent, seen = Silent(), []

    def open_silent(options: OtlpOptions) -> Silent:
        seen.append(options.timeout_s)
        return silent

    options = OtlpOptions(protocol="grpc", endpoint="127.0.0.1:1", plaintext=True, timeout_s=600)
    result = check_collector(options, open_silent)
    assert result.status is Status.FAIL
    assert (seen, silent.closed) == ([5.0], True)


def test_without_an_endpoint_nothing_is_sent() -> None:
    """The check says how to ask for it."""
    result = check_collector(None)
    assert result.status is Status.SKIP
    assert "--endpoint" in result.detail


def test_the_profile_conforms() -> None:
    """What is sent keeps the rules that receivers check, and cannot be taken for anybody's work."""
    request = one_sample(NOW_NS)
    assert violations(request) == []
    (resource,) = request.resource_profiles
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes == {"service.name": SERVICE_NAME}
    (profile,) = resource.scope_profiles[0].profiles
    assert [list(sample.values) for sample in profile.samples] == [[1]]
