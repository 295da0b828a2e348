"""Sends findings as OpenTelemetry log events through the SDK. Whatever goes wrong here never concerns profiles."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)

from otel_gpuflame import __version__
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.sdk_arguments import grpc_arguments, http_arguments
from otel_gpuflame.export.sdk_watch import Reasons, Watch
from otel_gpuflame.export.self_telemetry import agent_resource
from otel_gpuflame.findings.model import Finding

logger = logging.getLogger(__name__)

EVENT_NAME: Final = "gpu.finding"
REPEAT_AFTER_NS: Final = 600_000_000_000
"""A program that goes on as it is would say the same with each window."""
WARN_FROM_SHARE: Final = 0.10
_MAX_KNOWN: Final = 4_096
"""Findings that are remembered so as not to be repeated: 1 MB."""
_LET_GO_S: Final = 0.5
"""For a request on its way to end as cancelled, where the transport can do that."""
_SCOPE: Final = "otel_gpuflame"
_REMEDY: Final = (
    "Profiles are not affected; set OTEL_EXPORTER_OTLP_LOGS_ENDPOINT, or leave out --findings"
)
_OF_TARGET: Final = ("service.name", "service.namespace", "service.instance.id", "process.pid")


class _Key(NamedTuple):
    """What makes two findings the same one: several processes of a service say it once."""

    namespace: str
    """Services of two teams may have one name."""
    service: str
    rule: str
    where: str


@dataclass(slots=True)
class _Known:
    told_ns: int
    windows: int = 0
    """Seen since it was told."""


class FindingLog:
    """Exports in a thread of the SDK, until `close`."""

    def __init__(self, destination: OtlpOptions) -> None:
        """Raises ExportError where a certificate or key cannot be used. Nothing is connected before a finding."""
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._reasons = Reasons()
        watch = Watch("findings: log events", destination.endpoint, self._reasons, _REMEDY)
        self._exporter = _exporter(destination, watch)
        self._reasons.attach()
        self._provider = LoggerProvider(resource=agent_resource(), shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(self._exporter))
        self._logger = self._provider.get_logger(_SCOPE, __version__)

    def note(self, findings: Iterable[Finding]) -> None:
        """Send those that are new, or were not told for `REPEAT_AFTER_NS` of their windows' time. From one thread."""
        for finding in findings:
            windows = self._windows_to_tell(finding)
            if windows:
                self._logger.emit(log_record(finding, windows))

    def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s` seconds and half a second more, whatever the receiver does."""
        # The SDK takes no timeout: it sends all there is, each batch for as long as a request may take.
        ending = threading.Thread(
            target=self._provider.shutdown, name="otel-gpuflame-findings-end", daemon=True
        )
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            logger.warning("findings: log events were on their way when time was up")
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
            ending.join(_LET_GO_S)
        self._reasons.detach()

    def _windows_to_tell(self, finding: Finding) -> int:
        """In how many windows the finding was seen since it was told; 0: it was told lately."""
        resource = dict(finding.resource)
        namespace = str(resource.get("service.namespace", ""))
        service = str(resource.get("service.name", "unknown_service"))
        key = _Key(namespace, service, finding.rule, finding.where)
        now_ns = finding.window.end_unix_ns
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(now_ns - REPEAT_AFTER_NS)
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        known.windows += 1
        if now_ns - known.told_ns < REPEAT_AFTER_NS:
            return 0
        windows, known.windows, known.told_ns = known.windows, 0, now_ns
        self._known.move_to_end(key)
        return windows


def log_record(finding: Finding, windows: int) -> LogRecord:
    """The event, as `docs/findings.md` describes it."""
    place = finding.place
    attributes: dict[str, str | int | float] = {
        "gpu.finding.rule": finding.rule,
        "gpu.finding.lost_ns": finding.lost_ns,
        "gpu.finding.share_of_window": round(finding.share, 6),
        "gpu.finding.confidence": finding.confidence.value,
        "gpu.finding.remedy": finding.remedy,
        "gpu.finding.windows": windows,
        "code.function.name": place.name,
    }
    if place.file:
        attributes |= {"code.file.path": place.file, "code.line.number": place.line}
    resource = dict(finding.resource)
    attributes |= {key: resource[key] for key in _OF_TARGET if key in resource}
    attributes |= {f"gpu.finding.evidence.{name}": value for name, value in finding.evidence}
    is_warning = finding.share >= WARN_FROM_SHARE
    return LogRecord(
        timestamp=finding.window.end_unix_ns,
        event_name=EVENT_NAME,
        severity_number=SeverityNumber.WARN if is_warning else SeverityNumber.INFO,
        severity_text="WARN" if is_warning else "INFO",
        body=f"{finding.title}: {finding.where} ({place.name}) loses {finding.share:.1%} of the time",
        attributes=attributes,
    )


def _exporter(options: OtlpOptions, watch: Watch) -> LogRecordExporter:
    """The SDK's exporter, with settings read as for profiles."""
    if options.protocol == "grpc":
        return _grpc_exporter(options, watch)
    return _http_exporter(options, watch)


# Imported where needed, as for metrics: loading grpcio takes a tenth of a second that HTTP needs not.


def _grpc_exporter(options: OtlpOptions, watch: Watch) -> LogRecordExporter:
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import (  # noqa: PLC0415
        OTLPLogExporter,
    )

    class Exporter(OTLPLogExporter):
        def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
            result = super().export(batch)
            watch.note(is_success=result is LogRecordExportResult.SUCCESS)
            return result

    return Exporter(**grpc_arguments(options))


def _http_exporter(options: OtlpOptions, watch: Watch) -> LogRecordExporter:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import (  # noqa: PLC0415
        OTLPLogExporter,
    )

    class Exporter(OTLPLogExporter):
        def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
            result = super().export(batch)
            watch.note(is_success=result is LogRecordExportResult.SUCCESS)
            return result

    return Exporter(**http_arguments(options))
