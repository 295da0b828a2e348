"""Sending with retries, within the time that an export has."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.export.result import ExportResult, Outcome

MAX_ATTEMPTS: Final = 5
FIRST_DELAY_S: Final = 0.5
"""Doubled after each attempt and spread by a fifth, so that agents do not all return at once."""
SPREAD: Final = 0.2
_SHORTEST_ATTEMPT_S = 0.001


class Transport(Protocol):
    """One attempt at a time."""

    def send(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        """Send `request` once. May raise; the exporter takes that for a rejection."""

    def close(self) -> None:
        """Let go of the connection."""


class RetryingExporter:
    """An exporter over a transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """`pause` sleeps for some seconds and returns True early if the exporter is closed."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait

    def export(self, request: ExportProfilesServiceRequest) -> ExportResult:
        """Send `request`, trying again within the timeout where that may help. Never raises.

        A delay that the receiver asked for is kept. Where it does not fit into the time left, the
        result goes back at once, for whoever keeps the request.
        """
        deadline = self._clock() + self._timeout_s
        size_bytes = request.ByteSize()
        attempts = 0
        while True:
            attempts += 1
            left_s = max(deadline - self._clock(), _SHORTEST_ATTEMPT_S)
            result = replace(
                self._attempt(request, left_s), attempts=attempts, size_bytes=size_bytes
            )
            if result.outcome is not Outcome.RETRYABLE or attempts == MAX_ATTEMPTS:
                return result
            delay_s = _delay_s(result, attempts)
            if self._clock() + delay_s >= deadline or self._pause(delay_s):
                return result

    def close(self) -> None:
        """End the wait for a retry, let go of the connection; later exports are rejected."""
        self._closed.set()
        self._transport.close()

    def _attempt(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        if self._closed.is_set():
            return ExportResult(outcome=Outcome.REJECTED, message="the exporter is closed")
        try:
            return self._transport.send(request, timeout_s)
        except Exception as error:
            # The transports turn every failure they know into a result. Whatever else a library
            # raises must not end the thread that exports.
            return ExportResult(
                outcome=Outcome.REJECTED, message=f"{type(error).__name__}: {error}"
            )


def _delay_s(result: ExportResult, attempts: int) -> float:
    if result.retry_after_s is not None:
        return result.retry_after_s
    spread = random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 - not a secret
    return FIRST_DELAY_S * 2.0 ** (attempts - 1) * spread
