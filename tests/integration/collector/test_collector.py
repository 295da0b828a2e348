# SPDX-License-Identifier: Apache-2.0
"""Hand-built profiles through a real OpenTelemetry Collector and out again at an OTLP sink.

The replies pinned here (status, words) are those of the Collector release in `otelcol/go.mod`; the
exporters' error messages are made for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.collector import (
    PROFILES_GATE,
    CollectorError,
    RunningCollector,
    validate_config,
)
from tests.integration.collector.configs import (
    ENRICHING_CONFIG,
    MERGING_CONFIG,
    RELAY_CONFIG,
    TRACES_ONLY_CONFIG,
    sink_addresses,
)
from tests.integration.collector.example_request import (
    DEVELOPMENT_VERSION,
    profiles_request,
    trace_request,
)
from tests.integration.collector.otlp_client import export_grpc, post
from tests.integration.collector.resolve import resolve_profiles
from tests.integration.collector.sink import OtlpSink, Received, Reply

# The first of these tests may have to build the Collector: minutes, when Go's cache is cold.
pytestmark = [pytest.mark.collector, pytest.mark.timeout(BUILD_TIMEOUT_S + 900)]

SHIPPED_CONFIG = Path(__file__).parents[3] / "collector-config" / "collector.yaml"
PROFILES_SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
PROFILES_PATH = "/v1development/profiles"


def _profiles_url(collector: RunningCollector) -> str:
    return f"http://{collector.http_endpoint}{PROFILES_PATH}"


@pytest.fixture
def without_profiles(collector_binary: Path) -> Iterator[RunningCollector]:
    """A Collector as most people run it: traces only, no feature gate."""
    with RunningCollector(collector_binary, TRACES_ONLY_CONFIG, feature_gates=()) as running:
        yield running


def test_shipped_config_is_valid(collector_binary: Path) -> None:
    """The Collector takes collector-config/collector.yaml with the profiles gate open."""
    verdict = validate_config(collector_binary, SHIPPED_CONFIG)
    assert (verdict.accepted, verdict.output) == (True, "")


def test_shipped_config_is_refused_without_the_gate(collector_binary: Path) -> None:
    """Without the gate the Collector says which one is missing."""
    verdict = validate_config(collector_binary, SHIPPED_CONFIG, feature_gates=())
    assert not verdict.accepted
    assert (
        'pipeline "profiles": profiling signal support is at alpha level, '
        f'gated under the "{PROFILES_GATE}" feature gate'
    ) in verdict.output


def test_shipped_config_carries_profiles_and_traces_to_their_backends(
    collector_binary: Path, sink: OtlpSink
) -> None:
    """Run as shipped: profiles leave over HTTP, traces over gRPC, both whole."""
    env = {
        "OTLP_GRPC_ENDPOINT": "127.0.0.1:0",
        "OTLP_HTTP_ENDPOINT": "127.0.0.1:0",
        "PROFILES_BACKEND_ENDPOINT": sink.http_endpoint,
        "TRACES_BACKEND_ENDPOINT": sink.grpc_endpoint,
    }
    with RunningCollector(collector_binary, SHIPPED_CONFIG, env=env) as collector:
        export_grpc(collector.grpc_endpoint, profiles_request())
        traces_url = f"http://{collector.http_endpoint}/v1/traces"
        assert post(traces_url, trace_request().SerializeToString()).status == 200
        sink.wait_for(2)
    by_signal = {received.signal: received for received in sink.received}
    profiles, traces = by_signal["profiles"], by_signal["traces"]
    assert (profiles.transport, traces.transport) == ("http", "grpc")
    assert resolve_profiles(profiles.profiles) == resolve_profiles(profiles_request())
    (resource_spans,) = traces.traces.resource_spans
    (sent,) = trace_request().resource_spans
    assert resource_spans.resource == sent.resource
    span, sent_span = resource_spans.scope_spans[0].spans[0], sent.scope_spans[0].spans[0]
    assert (span.trace_id, span.span_id) == (sent_span.trace_id, sent_span.span_id)
    assert span.attributes == sent_span.attributes


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_profiles_come_out_whole(relay: RunningCollector, sink: OtlpSink, transport: str) -> None:
    """A request over either transport leaves both exporters with nothing lost or changed."""
    if transport == "grpc":
        response = export_grpc(relay.grpc_endpoint, profiles_request())
        assert response.partial_success.rejected_profiles == 0
    else:
        assert post(_profiles_url(relay), profiles_request().SerializeToString()).status == 200
    by_transport = {received.transport: received for received in sink.wait_for(2)}
    for way_out in ("grpc", "http"):
        received = by_transport[way_out]
        assert resolve_profiles(received.profiles) == resolve_profiles(profiles_request())
        assert received.header(DEVELOPMENT_VERSION[0]) == ("1",)
    assert by_transport["http"].header("content-encoding") == ("gzip",)


def test_requests_of_two_hosts_can_be_merged(collector_binary: Path, sink: OtlpSink) -> None:
    """A batching queue sends one request with both dictionaries joined, and nothing is lost."""
    cart, checkout = (profiles_request(service_name=name) for name in ("cart", "checkout"))
    strings = cart.dictionary.string_table
    strings[list(strings).index("main")] = "cart_main"
    with RunningCollector(collector_binary, MERGING_CONFIG, env=sink_addresses(sink)) as merging:
        export_grpc(merging.grpc_endpoint, cart)
        export_grpc(merging.grpc_endpoint, checkout)
        (received,) = sink.wait_for(1)
    merged = resolve_profiles(received.profiles)
    assert set(merged) == {*resolve_profiles(cart), *resolve_profiles(checkout)}
    assert len(merged) == 4
    assert len(sink.received) == 1


def test_the_resource_processor_adds_to_profiles(collector_binary: Path, sink: OtlpSink) -> None:
    """The attribute that a deployment adds to its other signals is added, and nothing changes."""
    with RunningCollector(
        collector_binary, ENRICHING_CONFIG, env=sink_addresses(sink)
    ) as enriching:
        export_grpc(enriching.grpc_endpoint, profiles_request())
        (received,) = sink.wait_for(1)
    expected = profiles_request()
    resource = expected.resource_profiles[0].resource
    resource.attributes.add(key="deployment.environment.name").value.string_value = "staging"
    assert resolve_profiles(received.profiles) == resolve_profiles(expected)


def test_backends_get_resource_attributes_as_references(
    relay: RunningCollector, sink: OtlpSink
) -> None:
    """The Collector moves inline resource strings into the dictionary, but not sample attributes.

    A backend that reads only inline keys loses `service.name` behind such a Collector: what it must
    not lose has to be a sample attribute too.
    """
    export_grpc(relay.grpc_endpoint, profiles_request())
    for received in sink.wait_for(2):
        request = received.profiles
        sent, came = (r.resource_profiles[0].resource for r in (profiles_request(), request))
        assert [pair.key for pair in sent.attributes] == ["service.name", "process.pid"]
        assert [pair.key for pair in came.attributes] == ["", ""]
        assert [_referenced_key(received, p) for p in came.attributes] == [
            "service.name",
            "process.pid",
        ]
        values = [row.value.string_value for row in request.dictionary.attribute_table]
        assert values == ["", "GPU-5f2c8b1e", "native", "cpython", "5c1d0f"]


def _referenced_key(received: Received, pair: KeyValue) -> str:
    return received.profiles.dictionary.string_table[pair.key_strindex]


def test_a_refusal_by_the_backend_is_in_the_collectors_log(
    relay: RunningCollector, sink: OtlpSink
) -> None:
    """The sender is told success, since a queue is in between: the log is where to look."""
    sink.script(Reply.invalid("no such tenant"), Reply.invalid("no such tenant"))
    assert not export_grpc(relay.grpc_endpoint, profiles_request()).partial_success.error_message
    sink.wait_for(2)
    assert "no such tenant" in relay.wait_for_log("Exporting failed. Dropping data.")


def test_a_collector_without_profiles_pipeline_answers_unimplemented(
    without_profiles: RunningCollector,
) -> None:
    """Over gRPC the service is unknown: UNIMPLEMENTED with the service's name."""
    with pytest.raises(grpc.RpcError) as failed:
        export_grpc(without_profiles.grpc_endpoint, profiles_request())
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert failed.value.details() == f"unknown service {PROFILES_SERVICE}"


def test_a_collector_without_profiles_pipeline_answers_404(
    without_profiles: RunningCollector,
) -> None:
    """Over HTTP the path is unknown: 404 in plain text, with no OTLP status in the body."""
    reply = post(_profiles_url(without_profiles), profiles_request().SerializeToString())
    assert reply.status == 404
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.body == b"404 page not found\n"


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (("2",), f"invalid or unsupported {DEVELOPMENT_VERSION[0]}: supported version is 1"),
        (("1", "1"), f"{DEVELOPMENT_VERSION[0]} must contain exactly one value"),
    ],
)
def test_another_development_version_is_refused_over_grpc(
    relay: RunningCollector, sink: OtlpSink, versions: tuple[str, ...], message: str
) -> None:
    """INVALID_ARGUMENT names the version that the Collector supports; nothing is passed on."""
    metadata = tuple((DEVELOPMENT_VERSION[0], version) for version in versions)
    with pytest.raises(grpc.RpcError) as failed:
        export_grpc(relay.grpc_endpoint, profiles_request(), metadata=metadata)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details() == message
    assert sink.received == ()


def test_another_development_version_is_refused_over_http(relay: RunningCollector) -> None:
    """400 with the same words in a `google.rpc.Status`."""
    reply = post(
        _profiles_url(relay),
        profiles_request().SerializeToString(),
        headers={DEVELOPMENT_VERSION[0]: "2"},
    )
    assert reply.status == 400
    assert status_pb2.Status.FromString(reply.body).message == (
        f"invalid or unsupported {DEVELOPMENT_VERSION[0]}: supported version is 1"
    )


def test_a_request_over_4_mib_is_refused_over_grpc(relay: RunningCollector) -> None:
    """The receiver's default limit: RESOURCE_EXHAUSTED, which no retry can cure."""
    request = profiles_request()
    request.dictionary.string_table.append("x" * (4 * 1024 * 1024))
    with pytest.raises(grpc.RpcError) as failed:
        export_grpc(relay.grpc_endpoint, request)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failed.value.details() == (
        f"grpc: received message larger than max ({request.ByteSize()} vs. {4 * 1024 * 1024})"
    )


def test_a_config_that_cannot_run_raises_with_the_collectors_words(collector_binary: Path) -> None:
    """A Collector that does not start is reported at once, not after a time-out."""
    config = RELAY_CONFIG.replace("otlp_http/sink, otlp_grpc/sink", "otlp_http/missing")
    collector = RunningCollector(collector_binary, config)
    with pytest.raises(CollectorError, match="otlp_http/missing"):
        collector.__enter__()
