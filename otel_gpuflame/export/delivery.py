"""A bounded queue between capture and exporter: what waits, what is sent again, what is dropped and why."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.export import Exporter
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

MAX_SAMPLES: Final = 1_000_000
"""Samples that may wait: about 200 MiB of bundles."""
MAX_AGE_S: Final = 600.0
"""Backends refuse profiles that are about an hour old; a queue that is longer than this hides the present."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
_LOG_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Waiting:
    bundle: Bundle
    since_s: float
    samples: int


class Delivery:
    """Fed by one thread, emptied by another that calls `run`. Oldest profiles go first when there is no room."""

    def __init__(self, exporter: Exporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._samples = 0
        self._changed = threading.Condition()
        self._closing_at_s: float | None = None
        self._logged: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        """Profiles by what became of them: exported, or dropped for a reason; `retries` counts requests."""

    @property
    def waiting_samples(self) -> int:
        """Samples in the queue."""
        return self._samples

    def put(self, bundle: Bundle) -> None:
        """Queue a bundle; never blocks."""
        samples = sum(len(profile.value) for profile in bundle.profiles)
        if not samples:
            return
        with self._changed:
            self._queue.append(_Waiting(bundle, self._clock(), samples))
            self._samples += samples
            while self._samples > MAX_SAMPLES and len(self._queue) > 1:
                self._drop(self._pop(), "queue_full")
            self._changed.notify()

    def close(self, deadline_s: float) -> None:
        """Send what is left for at most `deadline_s` seconds, then drop the rest."""
        with self._changed:
            self._closing_at_s = self._clock() + deadline_s
            self._changed.notify()

    def run(self) -> None:
        """Export until closed. Never raises: a failure is a count and a rate-limited message."""
        pause_s = FIRST_PAUSE_S
        while (waiting := self._next()) is not None:
            if self._clock() - waiting.since_s > MAX_AGE_S:
                self._drop(waiting, "expired")
            elif self._send(waiting):
                pause_s = FIRST_PAUSE_S
            else:
                self._put_back(waiting)
                self._wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        self._exporter.close()

    def _next(self) -> _Waiting | None:
        """The oldest bundle; waits for one. None when closed and empty, or out of time."""
        with self._changed:
            while not self._queue and self._closing_at_s is None:
                self._changed.wait()
            if self._is_out_of_time():
                while self._queue:
                    self._drop(self._pop(), "shutdown")
            return self._pop() if self._queue else None

    def _send(self, waiting: _Waiting) -> bool:
        """False if the same bundle should be sent again later."""
        dropped: Counter[str] = Counter()
        try:
            requests = encode_otlp([waiting.bundle], dropped=dropped)
        except EncodeError as error:
            self._drop(waiting, "not_encodable")
            self._log(str(error))
            return True
        self.counts["dropped_samples_too_large"] += len(dropped)
        for request in requests:
            result = self._exporter.export(request)
            if result.outcome is Outcome.RETRYABLE:
                self.counts["retries"] += 1
                self._log(result.message)
                return False
            self._account(waiting.bundle, result)
        return True

    def _account(self, bundle: Bundle, result: ExportResult) -> None:
        profiles = sum(1 for profile in bundle.profiles if len(profile.value))
        if result.outcome is Outcome.ACCEPTED:
            self.counts["exported"] += profiles
            return
        self._log(result.message)
        if result.outcome is Outcome.PARTIAL:
            self.counts["rejected"] += result.rejected_profiles
            self.counts["exported"] += max(profiles - result.rejected_profiles, 0)
        elif profiles > 1:
            # A receiver refuses a request as a whole: the good ones get through alone.
            for profile in bundle.profiles:
                self._send_alone(replace(bundle, profiles=(profile,)))
        else:
            self.counts["rejected"] += profiles

    def _send_alone(self, bundle: Bundle) -> None:
        for request in encode_otlp([bundle], dropped=Counter()):
            result = self._exporter.export(request)
            accepted = result.outcome is Outcome.ACCEPTED
            self.counts["exported" if accepted else "rejected"] += 1

    def _pop(self) -> _Waiting:
        waiting = self._queue.popleft()
        self._samples -= waiting.samples
        return waiting

    def _put_back(self, waiting: _Waiting) -> None:
        with self._changed:
            self._queue.appendleft(waiting)
            self._samples += waiting.samples

    def _wait(self, pause_s: float) -> None:
        """Pause, but not beyond the end."""
        deadline_s = self._clock() + pause_s
        with self._changed:
            while self._clock() < deadline_s and not self._is_out_of_time():
                left_s = deadline_s - self._clock()
                if self._closing_at_s is not None:
                    left_s = min(left_s, self._closing_at_s - self._clock())
                self._changed.wait(max(left_s, 0.01))

    def _is_out_of_time(self) -> bool:
        return self._closing_at_s is not None and self._clock() >= self._closing_at_s

    def _drop(self, waiting: _Waiting, reason: str) -> None:
        profiles = sum(1 for profile in waiting.bundle.profiles if len(profile.value))
        self.counts[f"dropped_{reason}"] += profiles
        self._log(f"{profiles} profiles dropped: {reason.replace('_', ' ')}")

    def _log(self, message: str) -> None:
        """Each message at most once a minute."""
        now_s = self._clock()
        if message and now_s - self._logged.get(message, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged[message] = now_s
            logger.warning("export: %s", message)
