"""What becomes of exports of the OpenTelemetry SDK, told once instead of every time."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

_EXPORTER_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "opentelemetry.exporter.otlp.proto.grpc._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.common.http",
)


class Reasons(logging.Filter):
    """Keeps what the SDK's exporters would log, every minute the same, for a message of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the message; nothing is logged."""
        self.last = record.getMessage()
        return False

    def attach(self) -> None:
        """From now on."""
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(self)

    def detach(self) -> None:
        """The loggers of the SDK are as they were."""
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).removeFilter(self)


class Watch:
    """Tells once that something does not get through, and once that it does again."""

    def __init__(self, what: str, endpoint: str, reasons: Reasons, remedy: str) -> None:
        """`what`, in the plural, begins the messages; `remedy` ends the first of them."""
        self._what = what
        self._endpoint = endpoint
        self._reasons = reasons
        self._remedy = remedy
        self._has_failed = False

    def note(self, *, is_success: bool) -> None:
        """What became of an export."""
        if not is_success and not self._has_failed:
            reason = self._reasons.last or "no reason given"
            logger.warning(
                "%s do not reach %s: %s. %s", self._what, self._endpoint, reason, self._remedy
            )
        elif self._has_failed and is_success:
            logger.warning("%s reach %s again", self._what, self._endpoint)
        self._has_failed = not is_success
