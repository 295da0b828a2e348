"""Metrics on their way: over both protocols, from start to end, and when nobody takes them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.agent_snapshot import AgentSnapshot, CaptureSnapshot
from otel_gpuflame.export.options import METRICS, SelfTelemetryOptions, otlp_options
from otel_gpuflame.export.self_telemetry import SelfTelemetry
from tests.integration.collector.sink import OtlpSink, Received, Reply
from tests.unit.export.test_self_metrics import STATE

NEVER_S = 3_600.0
"""The last export, at `close`, is then the only one."""
EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A backend."""
    with OtlpSink() as running:
        yield running


def options(endpoint: str, interval_s: float = NEVER_S, **variables: str) -> SelfTelemetryOptions:
    """Options as from the environment."""
    protocol = "http/protobuf" if "://" in endpoint else "grpc"
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint if "://" in endpoint else f"http://{endpoint}",
    }
    destination = otlp_options(environment | variables, METRICS)
    return SelfTelemetryOptions(destination=destination, interval_s=interval_s)


def endpoints(sink: OtlpSink) -> dict[str, str]:
    """By protocol."""
    return {"grpc": sink.grpc_endpoint, "http": sink.http_endpoint}


def values(received: Received) -> dict[str, list[float]]:
    """Values of all points by metric."""
    found: dict[str, list[float]] = {}
    for resource in received.metrics.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = metric.sum if metric.HasField("sum") else metric.gauge
                found[metric.name] = [
                    p.as_double if p.HasField("as_double") else p.as_int for p in data.data_points
                ]
    return found


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_metrics_arrive_at_the_end_with_overheads(sink: OtlpSink, transport: str) -> None:
    """Closing sends the last values, those of processes among them."""
    SelfTelemetry(options(endpoints(sink)[transport]), lambda: STATE).close(300)

    (received,) = sink.received
    assert (received.transport, received.signal) == (transport, "metrics")
    found = values(received)
    assert found["gpu.wait.time"] == [2.5, 0.5, 1e-9, 0.0]
    assert found["otel_gpuflame.overhead"] == [0.008, 0.001]
    (resource,) = received.metrics.resource_metrics
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.name"] == "otel_gpuflame"


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_headers_and_compression_are_those_of_the_options(sink: OtlpSink, transport: str) -> None:
    """Credentials and gzip work as for profiles."""
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b"}
    SelfTelemetry(options(endpoints(sink)[transport], **variables), lambda: STATE).close(300)

    (received,) = sink.received
    assert received.header("x-token") == ("a b",)
    if transport == "http":
        assert received.header("content-encoding") == ("gzip",)


def test_exports_come_at_the_interval_and_show_the_present(sink: OtlpSink) -> None:
    """Each export reads the state anew."""
    counts = iter(range(1, 10_000))

    def snapshot() -> AgentSnapshot:
        return AgentSnapshot(capture=CaptureSnapshot(targets=next(counts)))

    telemetry = SelfTelemetry(options(sink.grpc_endpoint, interval_s=0.05), snapshot)
    first, second = sink.wait_for(2)[:2]
    telemetry.close(300)

    assert values(first)["otel_gpuflame.targets"] < values(second)["otel_gpuflame.targets"]


def unused_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("endpoint", ["127.0.0.1:{}", "http://127.0.0.1:{}"])
def test_an_absent_receiver_is_told_with_reason_and_remedy(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One message of ours in place of the SDK's, within the timeout of an export."""
    where = endpoint.format(unused_port())

    SelfTelemetry(options(where, OTEL_EXPORTER_OTLP_TIMEOUT="200"), lambda: STATE).close(300)

    (message,) = caplog.messages
    assert "metrics do not reach" in message
    assert "--no-self-telemetry" in message
    assert "Failed to export metrics" in message


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_trouble_is_told_once_and_so_is_its_end(
    sink: OtlpSink, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A receiver that refuses metrics for hours gives one message, and one when it takes them again."""
    sink.script(*[Reply.invalid("no metrics here")] * 3)
    telemetry = SelfTelemetry(options(endpoints(sink)[transport], interval_s=0.02), lambda: STATE)
    sink.wait_for(5)
    telemetry.close(300)

    refused, restored = caplog.messages
    assert "metrics do not reach" in refused
    assert "reach" in restored
    assert "again" in restored


def test_the_log_of_the_sdk_is_back_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Filters on loggers of others are taken off."""
    where = f"127.0.0.1:{unused_port()}"
    SelfTelemetry(options(where, OTEL_EXPORTER_OTLP_TIMEOUT="50"), lambda: STATE).close(300)
    logging.getLogger(EXPORTER_LOGGERS[0]).warning("of somebody else")
    assert "of somebody else" in caplog.text


@pytest.mark.parametrize("endpoint", ["https://127.0.0.1:1", "127.0.0.1:1"])
def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(
    endpoint: str, tmp_path: Path
) -> None:
    """As for profiles: not at the first export, a minute later, in a log."""
    settings = options(endpoint)
    missing = str(tmp_path / "missing.pem")
    destination = replace(settings.destination, plaintext=False, certificate_file=missing)

    with pytest.raises(ExportError, match=r"missing\.pem"):
        SelfTelemetry(replace(settings, destination=destination), lambda: STATE)


def test_a_state_that_cannot_be_read_does_not_raise(
    sink: OtlpSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in here is a message; profiles know nothing of it."""

    def broken() -> AgentSnapshot:
        raise RuntimeError("odd state")

    SelfTelemetry(options(sink.grpc_endpoint), broken).close(300)

    assert sink.received == ()
    assert "odd state" in caplog.text
