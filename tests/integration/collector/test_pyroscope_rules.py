# SPDX-License-Identifier: Apache-2.0
"""Each rule of the Pyroscope double fires on a request that breaks it, over both transports. Needs no Collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import KeyValueAndUnit, Profile

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.limits import Limits
from tests.fakes.pyroscope.store import StoredProfile
from tests.integration.collector.example_request import (
    SPAN_ID,
    START_UNIX_NS,
    TRACE_ID,
    profiles_request,
    trace_request,
)
from tests.integration.collector.otlp_client import export_grpc, post

Request = ExportProfilesServiceRequest
Damage = Callable[[Request], object]
LIMITS = Limits()
PROFILES_PATH = "/v1development/profiles"
WAIT_ID = "gpu:gpu_wait:nanoseconds:gpu:nanoseconds"
LAUNCH_ID = "gpu:gpu_launch:count:gpu:nanoseconds"


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = START_UNIX_NS

    def __call__(self) -> int:
        return self.now_ns


def make_double(limits: Limits = LIMITS, clock: Clock | None = None) -> PyroscopeDouble:
    """A double whose time is that of the example request."""
    clock = clock or Clock()
    return PyroscopeDouble(limits, unix_ns=clock, monotonic_ns=clock)


@pytest.fixture
def pyroscope() -> Iterator[PyroscopeDouble]:
    """A double with Pyroscope's own limits."""
    with make_double() as running:
        yield running


def first(request: Request) -> Profile:
    """The `gpu_wait` profile of the example."""
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def string(request: Request, text: str) -> int:
    """Index of `text`, added to the string table."""
    request.dictionary.string_table.append(text)
    return len(request.dictionary.string_table) - 1


def add_attribute(request: Request, key: str, value: AnyValue) -> None:
    """Give the first sample one more attribute."""
    request.dictionary.attribute_table.append(
        KeyValueAndUnit(key_strindex=string(request, key), value=value)
    )
    index = len(request.dictionary.attribute_table) - 1
    first(request).samples[0].attribute_indices.append(index)


def add_resource(request: Request, key: str, value: str) -> None:
    """Give the resource one more attribute."""
    request.resource_profiles[0].resource.attributes.append(
        KeyValue(key=key, value=AnyValue(string_value=value))
    )


def add_timestamps(request: Request, *, values: tuple[int, ...]) -> None:
    """Two instants on the first sample, beside `values`."""
    sample = first(request).samples[0]
    sample.timestamps_unix_nano.extend([START_UNIX_NS, START_UNIX_NS + 1])
    del sample.values[:]
    sample.values.extend(values)


def many_labels(request: Request) -> None:
    """One label too many for the first series, which has seven; the others have one less."""
    for number in range(LIMITS.max_labels_per_series - 6):
        add_resource(request, f"label.{number}", "x")


def many_sample_labels(request: Request) -> None:
    """One label too many for a sample, which has three: an attribute and its link."""
    for number in range(LIMITS.max_labels_per_sample - 2):
        add_attribute(request, f"label.{number}", AnyValue(string_value="x"))


def many_samples(request: Request) -> None:
    """One sample more than a profile may have."""
    sample = first(request).samples[2]
    first(request).samples.extend([sample] * (LIMITS.max_samples - 2))


def hyphen_type(request: Request) -> None:
    """A sample type that is no name of a metric."""
    first(request).sample_type.type_strindex = string(request, "gpu-wait")


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


def push(request: Request, limits: Limits = LIMITS) -> tuple[StoredProfile, ...]:
    """What a double stores of `request`, which it must take."""
    with make_double(limits) as pyroscope:
        export_grpc(pyroscope.grpc_endpoint, request)
        return pyroscope.store.all()


def test_the_unbroken_request_is_stored_as_two_types_and_two_series() -> None:
    """Names, labels, stacks, spans and values of the example arrive; each set of sample labels is a series."""
    stored = push(profiles_request())
    assert [(p.profile_type.id, p.labels.get("hw.id"), len(p.samples)) for p in stored] == [
        (WAIT_ID, "GPU-5f2c8b1e", 2),
        (WAIT_ID, None, 1),
        (LAUNCH_ID, "GPU-5f2c8b1e", 1),
    ]
    assert stored[0].labels == {
        "__delta__": "false",
        "__name__": "gpu",
        "__otel__": "true",
        "hw.id": "GPU-5f2c8b1e",
        "process.pid": "4711",
        "service.name": "checkout",
        "service_name": "checkout",
    }
    sample, unlinked = stored[0].samples
    assert sample.stack[:3] == ("main", "step", "loss_item")
    assert (sample.span_id, sample.trace_id) == (SPAN_ID.hex(), TRACE_ID.hex())
    assert (sample.value, unlinked.value, unlinked.span_id) == (2_500_000, 40, "")
    assert stored[1].samples[0].stack == ("main", "/usr/lib/libcuda.so.1 0x7f0000009abc")


@pytest.mark.parametrize(
    ("sample_type", "period_type", "period", "values", "expected"),
    [
        (
            ("samples", "count"),
            ("cpu", "nanoseconds"),
            10,
            (3,),
            ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", 30),
        ),
        (("off_cpu", "nanoseconds"), None, 0, (3, 4), ("off_cpu:off_cpu:nanoseconds::", 7)),
        (
            ("gpu_time", "nanoseconds"),
            ("gpu", "nanoseconds"),
            1,
            (3,),
            ("gpu:gpu_time:nanoseconds:gpu:nanoseconds", 3),
        ),
        (
            ("wall:time", "nanoseconds"),
            ("gpu", "nanoseconds"),
            1,
            (3,),
            ("nanoseconds:wall:time:nanoseconds:gpu:nanoseconds", 3),
        ),
    ],
    ids=["cpu", "off-cpu", "custom", "colon"],
)
def test_profile_types_are_named_by_period_type(
    sample_type: tuple[str, str],
    period_type: tuple[str, str] | None,
    period: int,
    values: tuple[int, ...],
    expected: tuple[str, int],
) -> None:
    """CPU samples become nanoseconds, off-CPU values are summed, all others are named after their period type."""
    request = profiles_request()
    profile = first(request)
    del profile.samples[1:]
    profile.sample_type.type_strindex = string(request, sample_type[0])
    profile.sample_type.unit_strindex = string(request, sample_type[1])
    profile.ClearField("period_type")
    if period_type:
        profile.period_type.type_strindex = string(request, period_type[0])
        profile.period_type.unit_strindex = string(request, period_type[1])
    profile.period = period
    del profile.samples[0].values[:]
    profile.samples[0].values.extend(values)
    stored = push(request)[0]
    assert (stored.profile_type.id, stored.samples[0].value) == expected


def test_timestamps_without_values_are_counted() -> None:
    """A sample with two instants and no value counts two."""
    request = profiles_request()
    add_timestamps(request, values=())
    assert push(request)[0].samples[0].value == 2


def test_service_name_of_a_sample_wins_and_splits_the_profile() -> None:
    """Samples that name a service make a profile of it; the others have the resource's."""
    request = profiles_request()
    add_attribute(request, "service.name", AnyValue(string_value="payments"))
    services = [p.labels["service_name"] for p in push(request)]
    assert services == ["payments", "checkout", "checkout", "checkout"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ((), "unknown_service"),
        (("process.executable.name",), "unknown_service:process.executable.name"),
    ],
)
def test_without_a_service_name_the_executable_stands_in(
    attributes: tuple[str, ...], expected: str
) -> None:
    """`unknown_service`, with the executable where the resource names it."""
    request = profiles_request()
    del request.resource_profiles[0].resource.attributes[:]
    for key in attributes:
        add_resource(request, key, key)
    assert {p.labels["service_name"] for p in push(request)} == {expected}


def refer(request: Request, key: str) -> None:
    """Move the key of a resource attribute, and a string value, into the string table, as Collectors do."""
    (pair,) = [p for p in request.resource_profiles[0].resource.attributes if p.key == key]
    pair.key, pair.key_strindex = "", string(request, key)
    if pair.value.HasField("string_value"):
        pair.value.string_value_strindex = string(request, pair.value.string_value)


def test_a_referenced_string_is_lost() -> None:
    """A key and a string that are only referred to make no label: the service has no name."""
    request = profiles_request()
    refer(request, "service.name")
    assert {p.labels["service_name"] for p in push(request)} == {"unknown_service"}


def test_a_number_behind_a_referenced_key_fails_the_request(pyroscope: PyroscopeDouble) -> None:
    """It makes a label without a name, which is refused: the reason for collector-config/pyroscope.yaml."""
    request = profiles_request()
    refer(request, "process.pid")
    with pytest.raises(grpc.RpcError, match="invalid label name ''"):
        export_grpc(pyroscope.grpc_endpoint, request)


def test_labels_take_strings_integers_and_lists_of_one() -> None:
    """Booleans, numbers with a point and longer lists are left out."""
    request = profiles_request()
    one, two = AnyValue(string_value="one"), AnyValue(string_value="two")
    add_attribute(request, "number", AnyValue(int_value=7))
    add_attribute(request, "list", AnyValue(array_value=ArrayValue(values=[one])))
    add_attribute(request, "longer", AnyValue(array_value=ArrayValue(values=[one, two])))
    add_attribute(request, "flag", AnyValue(bool_value=True))
    add_attribute(request, "ratio", AnyValue(double_value=0.5))
    labels = push(request)[0].labels
    assert (labels["number"], labels["list"]) == ("7", "one")
    assert not {"longer", "flag", "ratio"} & set(labels)


def test_what_the_resource_says_wins_over_a_sample() -> None:
    """A sample attribute with a key of the resource does not change the series."""
    request = profiles_request()
    add_attribute(request, "process.pid", AnyValue(string_value="1"))
    assert push(request)[0].labels["process.pid"] == "4711"


def test_a_bad_attribute_index_loses_the_profile_silently() -> None:
    """The one loss without an error: success is answered, and nothing of the profile is stored."""
    request = profiles_request()
    first(request).samples[0].attribute_indices.append(99)
    assert [p.profile_type.id for p in push(request)] == [LAUNCH_ID]


def test_thirty_labels_are_taken() -> None:
    """The limit itself is not too many."""
    request = profiles_request()
    many_labels(request)
    request.resource_profiles[0].resource.attributes.pop()
    assert [len(p.labels) for p in push(request)] == [30, 29, 30]


def test_stacks_are_cut_at_the_leaf() -> None:
    """Of a stack that is too deep only the frames next to the root stay."""
    stored = push(profiles_request(), replace(LIMITS, max_stack_depth=2))
    assert stored[0].samples[0].stack == ("main", "step", "loss_item")


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


def test_json_is_read_as_protobuf_writes_it(pyroscope: PyroscopeDouble) -> None:
    """`application/json` has bytes as base64, unlike OTLP's own JSON."""
    body = json_format.MessageToJson(profiles_request()).encode()
    headers = {"Content-Type": "application/json"}
    reply = post(pyroscope.http_endpoint + PROFILES_PATH, body, headers=headers)
    assert reply.status == 200
    assert pyroscope.store.all()[0].samples[0].span_id == SPAN_ID.hex()


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
            export(trace_request(), timeout=20)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
