"""Where profiles and metrics go: flags, variables and what goes before what."""

from __future__ import annotations

import pytest

from otel_gpuflame.cli.destination import destination, logs_destination, metrics_destination
from otel_gpuflame.errors import ConfigError
from otel_gpuflame.export.options import metric_interval_s

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
OF_METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
OF_PROFILES = "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "endpoint", "expected"),
    [
        ({}, None, "localhost:4317"),
        ({}, "collector:4317", "collector:4317"),
        ({BASE: "http://base:1"}, None, "base:1"),
        ({BASE: "http://base:1"}, "http://flag:2", "flag:2"),
        ({OF_METRICS: "http://metrics:3", BASE: "http://base:1"}, "http://flag:2", "metrics:3"),
        ({OF_PROFILES: "http://pyroscope:4"}, None, "localhost:4317"),
    ],
)
def test_metrics_go_where_profiles_go_unless_told(
    environment: dict[str, str], endpoint: str | None, expected: str
) -> None:
    """The variable for metrics goes before the flag, the flag before the base; that of profiles is none of theirs."""
    assert metrics_destination(environment, endpoint, None).endpoint == expected


def test_metrics_over_http_have_their_own_path() -> None:
    """The flag is a base URL for both signals."""
    arguments = ("http://collector:4318/otlp", "http/protobuf")
    assert metrics_destination({}, *arguments).endpoint == "http://collector:4318/otlp/v1/metrics"
    profiles = destination({}, *arguments).endpoint
    assert profiles == "http://collector:4318/otlp/v1development/profiles"


def test_the_protocol_of_metrics_can_differ() -> None:
    """The variable for metrics goes before the flag."""
    environment = {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}
    options = metrics_destination(environment, "http://collector:4318", "grpc")
    assert options.protocol == "http/protobuf"


def test_headers_of_metrics_are_read() -> None:
    """All settings have a form for metrics."""
    environment = {"OTEL_EXPORTER_OTLP_METRICS_HEADERS": "a=b"}
    assert metrics_destination(environment, None, None).headers == (("a", "b"),)


@pytest.mark.parametrize(("text", "seconds"), [("", 60), ("1000", 1), (" 250 ", 0.25)])
def test_the_interval_of_metrics_is_in_milliseconds(text: str, seconds: float) -> None:
    """As the specification says of every duration."""
    assert metric_interval_s({"OTEL_METRIC_EXPORT_INTERVAL": text}) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "1s", "inf", "²"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    """The SDK would go on with another one, or raise what nobody catches."""
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        metric_interval_s({"OTEL_METRIC_EXPORT_INTERVAL": text})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "http://flag:2/v1/logs"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs:3/x"}, "http://logs:3/x"),
    ],
)
def test_log_events_go_where_profiles_go_unless_told(
    variables: dict[str, str], expected: str
) -> None:
    """As metrics, by variables and a path of their own."""
    options = logs_destination(variables, "http://flag:2", "http/protobuf")
    assert options.endpoint == expected
