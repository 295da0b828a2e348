"""Sends the agent's own metrics through the OpenTelemetry SDK. Whatever goes wrong here never concerns profiles."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from otel_gpuflame import __version__
from otel_gpuflame.export.agent_snapshot import AgentSnapshot
from otel_gpuflame.export.options import OtlpOptions, SelfTelemetryOptions
from otel_gpuflame.export.sdk_arguments import grpc_arguments, http_arguments
from otel_gpuflame.export.sdk_watch import Reasons, Watch
from otel_gpuflame.export.self_metrics import OVERHEAD, register

logger = logging.getLogger(__name__)

_SCOPE: Final = "otel_gpuflame"
_REMEDY: Final = (
    "Profiles are not affected; set OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, or switch this off with "
    "--no-self-telemetry"
)

Snapshot = Callable[[], AgentSnapshot]


class SelfTelemetry:
    """Exports from its construction until `close`, in a thread of the SDK."""

    def __init__(self, options: SelfTelemetryOptions, snapshot: Snapshot) -> None:
        """Raises ExportError where a certificate or key cannot be used. Nothing is connected until the first export."""
        self._reasons = Reasons()
        watch = Watch(
            "self-telemetry: metrics", options.destination.endpoint, self._reasons, _REMEDY
        )
        exporter = _exporter(options.destination, snapshot, watch)
        self._reasons.attach()
        reader = PeriodicExportingMetricReader(
            exporter, export_interval_millis=options.interval_s * 1000
        )
        self._provider = MeterProvider([reader], resource=agent_resource(), shutdown_on_exit=False)
        register(self._provider.get_meter(_SCOPE, __version__), snapshot)

    def close(self, timeout_s: float) -> None:
        """Send the last values for at most `timeout_s` seconds."""
        try:
            self._provider.shutdown(timeout_millis=timeout_s * 1000)
        except Exception as error:
            # The SDK wraps whatever its readers raise into a bare Exception.
            logger.warning("self-telemetry: the end was not orderly: %s", error)
        finally:
            self._reasons.detach()


def agent_resource() -> Resource:
    """The agent's own, with what OTEL_RESOURCE_ATTRIBUTES adds to it; never a target's."""
    return Resource.create(
        {
            "service.name": _SCOPE,
            "service.version": __version__,
            "host.name": platform.node(),
        }
    )


def with_overheads(data: MetricsData, now: AgentSnapshot, time_unix_ns: int) -> MetricsData:
    """`data` with the overhead of each process that lives now: processes that have ended leave nothing behind."""
    points = [
        NumberDataPoint(
            attributes=point.attributes,
            start_time_unix_nano=0,
            time_unix_nano=time_unix_ns,
            value=point.value,
        )
        for point in OVERHEAD.points(now)
    ]
    if not points or not data.resource_metrics:
        return data
    metric = Metric(OVERHEAD.name, OVERHEAD.description, OVERHEAD.unit, Gauge(points))
    first, *others = data.resource_metrics
    scopes = [
        replace(scope, metrics=[*scope.metrics, metric]) if scope.scope.name == _SCOPE else scope
        for scope in first.scope_metrics
    ]
    return replace(data, resource_metrics=[replace(first, scope_metrics=scopes), *others])


def _exporter(options: OtlpOptions, snapshot: Snapshot, watch: Watch) -> MetricExporter:
    """The SDK's exporter, with settings read as for profiles: it would take a timeout for seconds."""
    if options.protocol == "grpc":
        return _grpc_exporter(options, snapshot, watch)
    return _http_exporter(options, snapshot, watch)


# Imported where needed, as for profiles: loading grpcio takes a tenth of a second that HTTP needs not.


def _grpc_exporter(options: OtlpOptions, snapshot: Snapshot, watch: Watch) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415
        OTLPMetricExporter,
    )

    class Exporter(OTLPMetricExporter):
        def export(
            self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
        ) -> MetricExportResult:
            data = with_overheads(metrics_data, snapshot(), time.time_ns())
            result = super().export(data, timeout_millis, **kwargs)
            watch.note(is_success=result is MetricExportResult.SUCCESS)
            return result

    return Exporter(**grpc_arguments(options))


def _http_exporter(options: OtlpOptions, snapshot: Snapshot, watch: Watch) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
        OTLPMetricExporter,
    )

    class Exporter(OTLPMetricExporter):
        def export(
            self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
        ) -> MetricExportResult:
            data = with_overheads(metrics_data, snapshot(), time.time_ns())
            result = super().export(data, timeout_millis, **kwargs)
            watch.note(is_success=result is MetricExportResult.SUCCESS)
            return result

    return Exporter(**http_arguments(options))
