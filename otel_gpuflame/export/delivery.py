"""A bounded queue between capture and exporter: what waits, what is sent again, what is dropped and why."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.encode.otlp import encode_requests
from otel_gpuflame.export import Exporter
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.shipment import EXPORTED, REJECTED, Encode, Shipment
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 256 * 1024 * 1024
"""Estimated memory of what may wait."""
MAX_AGE_S: Final = 600.0
"""Backends refuse profiles that are about an hour old; a queue that is longer than this hides the present."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
"""Pauses double, spread by a fifth so that the agents of many hosts do not all return at once."""
MAX_ASKED_PAUSE_S: Final = 300.0
"""A receiver may ask for a longer pause. A date in a wrong time zone must not silence us for hours."""
FAILURES_AT_HEAD: Final = 3
"""After so many failures of the oldest bundle the next one is tried: the fault may be that of the bundle."""
_SPREAD: Final = 0.2

Wait = Callable[[threading.Condition, "float | None"], object]
"""Waits on a condition that is held, for some seconds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryCounts:
    """Profiles since the start: put = exported + rejected + sum of dropped + waiting, always.

    `dropped` is by reason. `retries` counts requests that are to be sent again; what waits includes what is being sent.
    """

    put: int = 0
    exported: int = 0
    rejected: int = 0
    dropped: tuple[tuple[str, int], ...] = ()
    waiting: int = 0
    waiting_samples: int = 0
    waiting_bytes: int = 0
    retries: int = 0


class Delivery:
    """Fed by any thread, emptied by one that calls `run`. Oldest profiles go first when there is no room."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        encode: Encode = encode_requests,
        encode_whole: Encode | None = None,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait = threading.Condition.wait,
    ) -> None:
        """`encode_whole` gets each bundle first, where that is not `encode`, which then gets only parts.

        `clock` gives seconds that never go back.
        """
        self._exporter = exporter
        self._encode = encode
        self._encode_whole = encode_whole or encode
        self._max_bytes = max_bytes
        self._clock = clock
        self._wait_on = wait
        # Held to touch anything below; nothing slow happens under it.
        self._changed = threading.Condition()
        self._queue: deque[Shipment] = deque()
        self._number = 0
        self._samples = 0
        self._bytes = 0
        self._profiles = 0
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._closing_at_s: float | None = None
        self._has_ended = False
        self._is_exporter_closed = False
        self._futile_split: str | None = None
        """Only `run` knows it: the refusal after which sending one by one did not help either."""

    def counts(self) -> DeliveryCounts:
        """What became of everything so far. From any thread."""
        with self._changed:
            dropped = {
                name.removeprefix("dropped_"): count
                for name, count in self._counts.items()
                if name.startswith("dropped_")
            }
            return DeliveryCounts(
                put=self._counts["put"],
                exported=self._counts[EXPORTED],
                rejected=self._counts[REJECTED],
                dropped=tuple(sorted(dropped.items())),
                waiting=self._profiles,
                waiting_samples=self._samples,
                waiting_bytes=self._bytes,
                retries=self._counts["retries"],
            )

    def put(self, bundle: Bundle) -> None:
        """Queue a bundle. Neither blocks nor logs: it is called by the thread that captures."""
        with self._changed:
            self._number += 1
            shipment = Shipment(
                bundle, self._number, self._clock(), self._encode, self._encode_whole
            )
            if not shipment.profiles:
                return
            self._counts["put"] += shipment.profiles
            self._profiles += shipment.profiles
            self._samples += shipment.samples
            self._bytes += shipment.size_bytes
            self._queue.append(shipment)
            self._drop_expired()
            if self._has_ended:
                self._drop_first("shutdown")
                return
            while self._bytes > self._max_bytes and len(self._queue) > 1:
                self._drop_first("queue_full")
            self._changed.notify()

    def close(self, deadline_s: float) -> None:
        """Send what is left for at most `deadline_s` seconds, then drop the rest."""
        with self._changed:
            at_s = self._clock() + deadline_s
            self._closing_at_s = (
                at_s if self._closing_at_s is None else min(self._closing_at_s, at_s)
            )
            self._changed.notify()

    def abort(self) -> None:
        """Drop what is left now. A request on its way ends where the transport can end it."""
        self.close(0)
        self._close_exporter()

    def run(self) -> None:
        """Export until closed. Never raises: a failure is a count and a message."""
        pause_s = FIRST_PAUSE_S
        while (shipment := self._next()) is not None:
            self._tell_drops()
            asked_s = self._send(shipment)
            if asked_s is None:
                self._note_answer(shipment)
                pause_s = FIRST_PAUSE_S
                continue
            self._put_back(shipment)
            spread = random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311 (no secret)
            self._wait(max(pause_s * spread, min(asked_s, MAX_ASKED_PAUSE_S)))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
        self._tell_drops()
        self._close_exporter()

    def _next(self) -> Shipment | None:
        """The bundle to send; waits for one. None when closed and empty, or out of time."""
        with self._changed:
            while True:
                self._drop_expired()
                if self._is_out_of_time():
                    while self._queue:
                        self._drop_first("shutdown")
                if self._queue:
                    return self._take()
                if self._closing_at_s is not None:
                    self._has_ended = True
                    return None
                self._wait_on(self._changed, None)

    def _take(self) -> Shipment:
        """The oldest, unless it has failed so often that it may itself be the fault: then the next one has a turn."""
        place = 0
        if len(self._queue) > 1:
            first, second = self._queue[0], self._queue[1]
            place = int(first.failures >= max(FAILURES_AT_HEAD, second.failures + 1))
        shipment = self._queue[place]
        del self._queue[place]
        return shipment

    def _put_back(self, shipment: Shipment) -> None:
        """Where it was: at most one that came before it still waits."""
        shipment.failures += 1
        with self._changed:
            is_second = bool(self._queue) and self._queue[0].number < shipment.number
            self._queue.insert(int(is_second), shipment)

    def _note_answer(self, shipment: Shipment) -> None:
        """The receiver is there: what failed before may have failed for its sake, and gets its turn again, once."""
        with self._changed:
            first = self._queue[0] if self._queue else None
            if first is None:
                return
            if first.number > shipment.number:
                first.failures = 0
            elif not first.was_passed:
                first.was_passed = True
                first.failures = FAILURES_AT_HEAD - 1

    def _send(self, shipment: Shipment) -> float | None:
        """None when it is done with; otherwise for how many seconds the receiver asked to be left alone, 0 or more."""
        for message in shipment.encode():
            logger.warning("export: %s", message)
        while shipment.requests:
            if self._is_out_of_time():
                return 0.0
            result = self._export(shipment.requests[0].request)
            if result.message:
                logger.warning("export: %s", result.message)
            if result.outcome is Outcome.RETRYABLE:
                with self._changed:
                    self._counts["retries"] += 1
                return result.retry_after_s or 0.0
            if result.outcome is Outcome.REJECTED and self._is_exporter_closed:
                return 0.0
            if result.outcome is Outcome.REJECTED:
                self._take_refusal(shipment, result.message)
            else:
                self._futile_split = None
                shipment.was_accepted = True
                shipment.next_done(result.rejected_profiles)
        if shipment.refused_whole is not None and not shipment.was_accepted:
            self._futile_split = shipment.refused_whole
        with self._changed:
            self._finish(shipment)
        return None

    def _take_refusal(self, shipment: Shipment, reason: str) -> None:
        """A receiver refuses a request as a whole: sent one by one, the good profiles get through.

        Not where that did not help the last time: a receiver that refuses everything would get seven requests for one.
        """
        profiles = len(shipment.requests[0].parts)
        if profiles > 1 and reason != self._futile_split:
            shipment.refused_whole = reason
            for message in shipment.split():
                logger.warning("export: %s", message)
        else:
            shipment.next_done(rejected=profiles)

    def _export(self, request: ExportProfilesServiceRequest) -> ExportResult:
        try:
            return self._exporter.export(request)
        except Exception as error:
            # Exporters promise not to raise; one that does must not end the thread that exports.
            message = f"{type(error).__name__}: {error}"
            return ExportResult(outcome=Outcome.REJECTED, message=message)

    def _drop_expired(self) -> None:
        while self._queue and self._clock() - self._queue[0].since_s > MAX_AGE_S:
            self._drop_first("expired")

    def _drop_first(self, reason: str) -> None:
        self._finish(self._queue.popleft(), f"dropped_{reason}")

    def _finish(self, shipment: Shipment, undelivered: str = EXPORTED) -> None:
        self._counts += shipment.tally(undelivered)
        self._profiles -= shipment.profiles
        self._samples -= shipment.samples
        self._bytes -= shipment.size_bytes

    def _wait(self, pause_s: float) -> None:
        """Pause, but not beyond the end."""
        with self._changed:
            until_s = self._clock() + pause_s
            while not self._is_out_of_time():
                end_s = until_s if self._closing_at_s is None else min(until_s, self._closing_at_s)
                left_s = end_s - self._clock()
                if left_s <= 0:
                    return
                self._wait_on(self._changed, left_s)

    def _is_out_of_time(self) -> bool:
        with self._changed:
            return self._closing_at_s is not None and self._clock() >= self._closing_at_s

    def _tell_drops(self) -> None:
        """Log what was dropped since the last time, in the thread that may be slow."""
        with self._changed:
            new = self._counts - self._told
            self._told = self._counts.copy()
        for reason in ("queue_full", "expired", "shutdown"):
            if count := new[f"dropped_{reason}"]:
                logger.warning("export: %d profiles dropped: %s", count, reason.replace("_", " "))

    def _close_exporter(self) -> None:
        with self._changed:
            is_first, self._is_exporter_closed = not self._is_exporter_closed, True
        if not is_first:
            return
        try:
            self._exporter.close()
        except Exception:
            logger.exception("export: the exporter could not be closed")
