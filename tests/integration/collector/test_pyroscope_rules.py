# SPDX-License-Identifier: Apache-2.0
"""Each rule of the Pyroscope double fires on a request that breaks it, over both transports. Needs no Collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.integration.collector.example_request import (
    START_UNIX_NS,
    profiles_request,
    trace_request,
)
from tests.integration.collector.otlp_client import export_grpc, post
from tests.integration.collector.pyroscope_requests import (
    LAUNCH_ID,
    LIMITS,
    PROFILES_PATH,
    Clock,
    Request,
    add_resource,
    add_timestamps,
    first,
    hyphen_type,
    make_double,
    many_labels,
    many_sample_labels,
    many_samples,
    push,
    refer,
)

Damage = Callable[[Request], object]


@pytest.fixture
def pyroscope() -> Iterator[PyroscopeDouble]:
    """A double with Pyroscope's own limits."""
    with make_double() as running:
        yield running


CONVERSION = (grpc.StatusCode.INVALID_ARGUMENT, 500)
VALIDATION = (grpc.StatusCode.INVALID_ARGUMENT, 400)
BROKEN: dict[str, tuple[Damage, tuple[grpc.StatusCode, int], str]] = {
    "no dictionary": (
        lambda r: r.ClearField("dictionary"),
        CONVERSION,
        "missing profile metadata dictionary",
    ),
    "no resources": (
        lambda r: r.ClearField("resource_profiles"),
        CONVERSION,
        "missing resource profiles",
    ),
    "no sample type": (
        lambda r: first(r).ClearField("sample_type"),
        CONVERSION,
        "sample type is missing",
    ),
    "type outside the table": (
        lambda r: setattr(first(r).sample_type, "type_strindex", 99),
        CONVERSION,
        "type string: index 99 out of bounds",
    ),
    "stack outside the table": (
        lambda r: setattr(first(r).samples[0], "stack_index", 4),
        CONVERSION,
        "stack: index 4 out of bounds",
    ),
    "negative location": (
        lambda r: r.dictionary.stack_table[1].location_indices.append(-1),
        CONVERSION,
        "location: index -1 out of bounds",
    ),
    "link outside the table": (
        lambda r: setattr(first(r).samples[0], "link_index", 2),
        CONVERSION,
        "link: index 2 out of bounds",
    ),
    "no value": (
        lambda r: first(r).samples[0].ClearField("values"),
        CONVERSION,
        "sample value is required",
    ),
    "value for each timestamp": (
        lambda r: add_timestamps(r, values=(1, 2)),
        CONVERSION,
        "sample values length mismatch 2 1",
    ),
    "no period": (
        lambda r: setattr(first(r), "period", 0),
        VALIDATION,
        "invalid metric name",
    ),
    "no period type": (
        lambda r: first(r).ClearField("period_type"),
        VALIDATION,
        "invalid metric name",
    ),
    "hyphen in the sample type": (hyphen_type, VALIDATION, "sample type contains -"),
    "31 labels": (many_labels, VALIDATION, "has 31 label names; limit 30"),
    "long label name": (
        lambda r: add_resource(r, "n" * 1025, "x"),
        VALIDATION,
        "label name too long",
    ),
    "long label value": (
        lambda r: add_resource(r, "n", "x" * 2049),
        VALIDATION,
        "label value too long",
    ),
    "label twice": (
        lambda r: add_resource(r, "service_name", "x"),
        VALIDATION,
        "duplicate label name: 'service_name'",
    ),
    "too many labels of a sample": (
        many_sample_labels,
        VALIDATION,
        r"sample labels limit .* actual: 101",
    ),
    "too many samples": (many_samples, VALIDATION, r"samples count limit .* actual: 16001"),
    "older than an hour": (
        lambda r: setattr(first(r), "time_unix_nano", START_UNIX_NS - 3_600_000_000_001),
        VALIDATION,
        "outside of ingestion window",
    ),
    "in the future": (
        lambda r: setattr(first(r), "time_unix_nano", START_UNIX_NS + 600_000_000_001),
        VALIDATION,
        "outside of ingestion window",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_an_error_over_both_transports(
    pyroscope: PyroscopeDouble, rule: str
) -> None:
    """The status of each transport and the words say which rule a request breaks."""
    damage, (grpc_code, http_status), message = BROKEN[rule]
    request = profiles_request()
    damage(request)
    with pytest.raises(grpc.RpcError, match=message) as failed:
        export_grpc(pyroscope.grpc_endpoint, request)
    assert failed.value.code() is grpc_code
    reply = post(pyroscope.http_endpoint + PROFILES_PATH, request.SerializeToString())
    assert (reply.status, reply.headers["content-type"]) == (
        http_status,
        "text/plain; charset=utf-8",
    )
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(reply.body.decode())


def test_a_number_behind_a_referenced_key_fails_the_request(pyroscope: PyroscopeDouble) -> None:
    """It makes a label without a name, which is refused: the reason for collector-config/pyroscope.yaml."""
    request = profiles_request()
    refer(request, "process.pid")
    with pytest.raises(grpc.RpcError, match="invalid label name ''"):
        export_grpc(pyroscope.grpc_endpoint, request)


def test_thirty_labels_are_taken() -> None:
    """The limit itself is not too many."""
    request = profiles_request()
    many_labels(request)
    request.resource_profiles[0].resource.attributes.pop()
    assert [len(p.labels) for p in push(request)] == [30, 29, 30]


def test_one_bad_profile_fails_the_request_and_its_neighbours_are_stored() -> None:
    """The sender is told that the request failed, although the good profile is there already."""
    request = profiles_request()
    first(request).period = 0
    with make_double() as pyroscope:
        with pytest.raises(grpc.RpcError, match="invalid metric name"):
            export_grpc(pyroscope.grpc_endpoint, request)
        assert [p.profile_type.id for p in pyroscope.store.all()] == [LAUNCH_ID]


def test_a_request_that_does_not_convert_stores_nothing() -> None:
    """Conversion comes before all storing."""
    request = profiles_request()
    del request.resource_profiles[0].scope_profiles[0].profiles[1].samples[0].values[:]
    with make_double() as pyroscope:
        with pytest.raises(grpc.RpcError, match="sample value is required"):
            export_grpc(pyroscope.grpc_endpoint, request)
        assert pyroscope.store.all() == ()


def size_of_the_first_profile(request: Request) -> int:
    """Bytes of the `gpu_wait` profile as pprof, read from the refusal of a double with no room."""
    with make_double(replace(LIMITS, max_profile_bytes=1)) as pyroscope:
        reply = post(pyroscope.http_endpoint + PROFILES_PATH, request.SerializeToString())
    return int(reply.body.decode().split("actual: ")[1].split(",")[0])


def test_a_profile_may_be_as_large_as_the_limit_and_no_larger() -> None:
    """The limit is on one profile as uncompressed pprof, not on the request."""
    size = size_of_the_first_profile(profiles_request())
    assert len(push(profiles_request(), replace(LIMITS, max_profile_bytes=size))) == 3
    with pytest.raises(grpc.RpcError, match="exceeds the size limit"):
        push(profiles_request(), replace(LIMITS, max_profile_bytes=size - 1))


def test_ingestion_rate_refuses_for_a_while_and_a_profile_above_the_burst_forever() -> None:
    """429 as long as the bucket is empty; a profile larger than the bucket never passes."""
    body = profiles_request().SerializeToString()
    clock = Clock()
    limits = replace(LIMITS, ingest_burst_bytes=1500, ingest_bytes_per_s=1000)
    with make_double(limits, clock) as pyroscope:
        url = pyroscope.http_endpoint + PROFILES_PATH
        assert post(url, body).status == 200
        assert post(url, body).status == 429
        clock.now_ns += 2_000_000_000
        assert post(url, body).status == 200
    with make_double(replace(limits, ingest_burst_bytes=300), clock) as pyroscope:
        url = pyroscope.http_endpoint + PROFILES_PATH
        for _ in range(3):
            assert post(url, body).status == 429
            clock.now_ns += 3_600_000_000_000


def test_requests_that_are_no_otlp_get_their_http_status(pyroscope: PyroscopeDouble) -> None:
    """A wrong path, content type, encoding or body is told apart, and nothing is stored."""
    url = pyroscope.http_endpoint + PROFILES_PATH
    assert post(pyroscope.http_endpoint + "/v1/profiles", b"").status == 404
    assert post(url, b"", headers={"Content-Type": "text/plain"}).status == 415
    assert post(url, b"\xff\xff").status == 400
    assert post(url, b"x", headers={"Content-Encoding": "gzip"}, compress=False).status == 400
    assert pyroscope.store.all() == ()


def test_too_large_a_body_is_refused() -> None:
    """413 over HTTP, also when only the decompressed body is too large, and gRPC's own code."""
    request = profiles_request()
    body = request.SerializeToString()
    with make_double(replace(LIMITS, max_body_bytes=len(body) - 1)) as pyroscope:
        url = pyroscope.http_endpoint + PROFILES_PATH
        assert post(url, body).status == 413
        assert post(url, body, compress=False).status == 413
        with pytest.raises(grpc.RpcError) as failed:
            export_grpc(pyroscope.grpc_endpoint, request)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_traces_are_not_for_pyroscope(pyroscope: PyroscopeDouble) -> None:
    """It has neither OTLP's path nor its service for traces."""
    url = pyroscope.http_endpoint + "/v1/traces"
    assert post(url, trace_request().SerializeToString()).status == 404
    with grpc.insecure_channel(pyroscope.grpc_endpoint) as channel:
        export = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            request_serializer=ExportTraceServiceRequest.SerializeToString,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as failed:
            export(trace_request(), timeout=300)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
