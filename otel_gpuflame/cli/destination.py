"""Where to send: flags in place of the environment variables that OpenTelemetry users know."""

from __future__ import annotations

from collections.abc import Mapping

from otel_gpuflame.export.options import (
    LOGS,
    METRICS,
    TRACES,
    OtlpOptions,
    Signal,
    otlp_options,
)

_SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT"
_BASE_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def destination(
    environment: Mapping[str, str],
    endpoint: str | None,
    protocol: str | None,
) -> OtlpOptions:
    """Options from the environment, `endpoint` and `protocol` going before it.

    Raises:
        ConfigError: a variable or the endpoint cannot be used.
    """
    merged = dict(environment)
    if endpoint is not None:
        # The flag is a base, like OTEL_EXPORTER_OTLP_ENDPOINT: for HTTP the path of the signal is appended.
        merged[_SIGNAL_ENDPOINT] = ""
        merged[_BASE_ENDPOINT] = _url(endpoint)
    if protocol is not None:
        merged["OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL"] = protocol
    return otlp_options(merged)


def metrics_destination(
    environment: Mapping[str, str], endpoint: str | None, protocol: str | None
) -> OtlpOptions:
    """Where the agent's own metrics go: as its profiles, unless OTEL_EXPORTER_OTLP_METRICS_* say otherwise.

    Raises:
        ConfigError: a variable or the endpoint cannot be used.
    """
    return _beside_profiles(environment, endpoint, protocol, METRICS)


def logs_destination(
    environment: Mapping[str, str], endpoint: str | None, protocol: str | None
) -> OtlpOptions:
    """Where log events go: as profiles, unless OTEL_EXPORTER_OTLP_LOGS_* say otherwise.

    Raises:
        ConfigError: a variable or the endpoint cannot be used.
    """
    return _beside_profiles(environment, endpoint, protocol, LOGS)


def traces_destination(
    environment: Mapping[str, str], endpoint: str | None, protocol: str | None
) -> OtlpOptions:
    """Where recorded traces go: as profiles, unless OTEL_EXPORTER_OTLP_TRACES_* say otherwise.

    Raises:
        ConfigError: a variable or the endpoint cannot be used.
    """
    return _beside_profiles(environment, endpoint, protocol, TRACES)


def _beside_profiles(
    environment: Mapping[str, str], endpoint: str | None, protocol: str | None, signal: Signal
) -> OtlpOptions:
    merged = dict(environment)
    if endpoint is not None:
        merged[_BASE_ENDPOINT] = _url(endpoint)
    if protocol is not None:
        merged["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    return otlp_options(merged, signal)


def _url(endpoint: str) -> str:
    return endpoint if "://" in endpoint else f"http://{endpoint}"
