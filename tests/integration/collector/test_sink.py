# SPDX-License-Identifier: Apache-2.0
"""The OTLP sink keeps what it gets and answers as told. Needs no Collector."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)

from tests.integration.collector.example_request import (
    DEVELOPMENT_VERSION,
    profiles_request,
    trace_request,
)
from tests.integration.collector.otlp_client import HttpReply, export_grpc, post
from tests.integration.collector.sink import OtlpSink, Reply

PROFILES_PATH = "/v1development/profiles"


def test_grpc_request_is_kept_with_its_metadata(sink: OtlpSink) -> None:
    """A gRPC export, compressed or not, arrives decoded and with the metadata that was sent."""
    export_grpc(sink.grpc_endpoint, profiles_request(), compression=grpc.Compression.Gzip)
    (received,) = sink.received
    assert (received.transport, received.signal) == ("grpc", "profiles")
    assert received.profiles == profiles_request()
    assert received.body == profiles_request().SerializeToString()
    assert received.header(DEVELOPMENT_VERSION[0]) == ("1",)


def test_http_request_is_kept_with_its_headers(sink: OtlpSink) -> None:
    """An HTTP export with gzip arrives decoded, and the headers have lower-case names."""
    reply = post(sink.http_endpoint + PROFILES_PATH, profiles_request().SerializeToString())
    assert reply.status == 200
    assert ExportProfilesServiceResponse.FromString(reply.body) == ExportProfilesServiceResponse()
    (received,) = sink.received
    assert received.profiles == profiles_request()
    assert received.header("content-encoding") == ("gzip",)
    assert received.header(DEVELOPMENT_VERSION[0]) == ("1",)


def test_traces_are_taken_beside_profiles(sink: OtlpSink) -> None:
    """The same sink stands in for a trace backend."""
    reply = post(sink.http_endpoint + "/v1/traces", trace_request().SerializeToString())
    assert ExportTraceServiceResponse.FromString(reply.body) == ExportTraceServiceResponse()
    (received,) = sink.wait_for(1, where=lambda r: r.signal == "traces")
    assert received.traces == trace_request()
    with pytest.raises(TypeError, match="not a profiles request"):
        _ = received.profiles


def test_metrics_are_taken_over_both_transports(sink: OtlpSink) -> None:
    """The same sink stands in for a metrics backend, with its own partial success."""
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add().name = "gpu.launches"
    sink.script(Reply(rejected=1, message="too old"), Reply(rejected=1, message="too old"))
    path = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    with grpc.insecure_channel(sink.grpc_endpoint) as channel:
        over_grpc = channel.unary_unary(path)(request.SerializeToString(), timeout=300)
    over_http = post(sink.http_endpoint + "/v1/metrics", request.SerializeToString()).body
    assert over_grpc == over_http
    answer = ExportMetricsServiceResponse.FromString(over_http)
    assert answer.partial_success.rejected_data_points == 1
    assert [received.metrics for received in sink.received] == [request, request]
    with pytest.raises(TypeError, match="not a metrics request"):
        _ = replace(sink.received[0], message=trace_request()).metrics


def test_partial_success_is_answered_over_both_transports(sink: OtlpSink) -> None:
    """`rejected` and `message` become OTLP's partial success."""
    sink.script(Reply(rejected=2, message="too old"), Reply(rejected=2, message="too old"))
    over_grpc = export_grpc(sink.grpc_endpoint, profiles_request())
    reply = post(sink.http_endpoint + PROFILES_PATH, profiles_request().SerializeToString())
    over_http = ExportProfilesServiceResponse.FromString(reply.body)
    assert over_grpc == over_http
    assert over_grpc.partial_success.rejected_profiles == 2
    assert over_grpc.partial_success.error_message == "too old"


def test_scripted_errors_come_in_order_and_then_success(sink: OtlpSink) -> None:
    """Each reply is used once; the request that was refused is kept as well."""
    sink.script(Reply.unavailable(retry_after_s=3), Reply.invalid("bad profile"))
    with pytest.raises(grpc.RpcError) as first:
        export_grpc(sink.grpc_endpoint, profiles_request())
    assert first.value.code() is grpc.StatusCode.UNAVAILABLE
    trailers = {item.key: item.value for item in first.value.trailing_metadata() or ()}
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 3
    with pytest.raises(grpc.RpcError) as second:
        export_grpc(sink.grpc_endpoint, profiles_request())
    assert second.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert second.value.details() == "bad profile"
    export_grpc(sink.grpc_endpoint, profiles_request())
    assert len(sink.received) == 3


def test_http_errors_carry_a_status_message_and_retry_after(sink: OtlpSink) -> None:
    """A failed OTLP/HTTP reply has `google.rpc.Status` as its body."""
    sink.script(Reply.unavailable("full", retry_after_s=7))
    reply = post(sink.http_endpoint + PROFILES_PATH, profiles_request().SerializeToString())
    assert reply.status == 503
    assert reply.headers["retry-after"] == "7"
    assert status_pb2.Status.FromString(reply.body).message == "full"


def test_garbage_can_be_answered(sink: OtlpSink) -> None:
    """`body` replaces the response message, so that a client meets a server that is no OTLP."""
    sink.script(Reply(body=b"<html>", http_headers=(("Content-Type", "text/html"),)))
    reply = post(sink.http_endpoint + PROFILES_PATH, profiles_request().SerializeToString())
    assert (reply.body, reply.headers["content-type"]) == (b"<html>", "text/html")
    with pytest.raises(DecodeError):
        ExportProfilesServiceResponse.FromString(reply.body)
    sink.script(Reply(body=b"<html>"))
    with pytest.raises(grpc.RpcError) as failed:
        export_grpc(sink.grpc_endpoint, profiles_request())
    assert "deserializing response" in str(failed.value.details())


def test_a_body_that_is_no_protobuf_is_kept_and_refused(sink: OtlpSink) -> None:
    """OTLP asks for HTTP 400 on data that does not decode."""
    reply = post(sink.http_endpoint + PROFILES_PATH, b"\xff\xff")
    assert reply.status == 400
    (received,) = sink.received
    assert (received.message, received.body) == (None, b"\xff\xff")


def test_requests_that_are_no_otlp_get_their_http_status(sink: OtlpSink) -> None:
    """A wrong path, content type, encoding and gzip body are told apart and not kept."""
    url = sink.http_endpoint + PROFILES_PATH
    assert post(sink.http_endpoint + "/v1/profiles", b"").status == 404
    assert post(url, b"", headers={"Content-Type": "text/plain"}).status == 415
    assert _post_raw(url, b"x", "zstd").status == 415
    assert _post_raw(url, b"not gzip", "gzip").status == 400
    assert sink.received == ()


def test_too_large_a_request_is_refused() -> None:
    """413 over HTTP, also when only the decompressed body is too large, and gRPC's own code."""
    body = profiles_request().SerializeToString()
    with OtlpSink(max_body_bytes=len(body) - 1) as sink:
        assert post(sink.http_endpoint + PROFILES_PATH, body).status == 413
        assert post(sink.http_endpoint + PROFILES_PATH, body, compress=False).status == 413
        with pytest.raises(grpc.RpcError) as failed:
            export_grpc(sink.grpc_endpoint, profiles_request())
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sink.received == ()


def test_a_delayed_reply_outlasts_the_clients_deadline(sink: OtlpSink) -> None:
    """The client times out, and the sink still closes at once."""
    sink.script(Reply(delay_s=600.0), Reply(delay_s=600.0))
    with pytest.raises(grpc.RpcError) as failed:
        export_grpc(sink.grpc_endpoint, profiles_request(), timeout_s=0.2)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with pytest.raises(TimeoutError):
        post(sink.http_endpoint + PROFILES_PATH, b"", timeout_s=0.2)


def test_wait_for_says_what_came_instead(sink: OtlpSink) -> None:
    """A test that waits in vain is told what did arrive."""
    export_grpc(sink.grpc_endpoint, profiles_request())
    with pytest.raises(TimeoutError, match=r"1 of 2 requests .*'grpc', 'profiles'"):
        sink.wait_for(2, timeout_s=0.01)


def _post_raw(url: str, body: bytes, encoding: str) -> HttpReply:
    return post(url, body, headers={"Content-Encoding": encoding}, compress=False)
