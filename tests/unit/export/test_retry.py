"""When to try again, and how long to wait: with a clock that only moves when told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.export.retry import FIRST_DELAY_S, MAX_ATTEMPTS, SPREAD, RetryingExporter

BUSY = ExportResult(outcome=Outcome.RETRYABLE, message="busy")
DONE = ExportResult(outcome=Outcome.ACCEPTED)


class Script:
    """A transport that gives prepared results, and the clock that its attempts and pauses move."""

    def __init__(self, results: Sequence[ExportResult | Exception], attempt_s: float = 0.0) -> None:
        """`attempt_s` is how long each attempt takes."""
        self.results = list(results)
        self.attempt_s = attempt_s
        self.now_s = 100.0
        self.pauses: list[float] = []
        self.timeouts: list[float] = []
        self.closes = 0
        self.gives_up = False

    def send(self, request: ExportProfilesServiceRequest, timeout_s: float) -> ExportResult:
        """The next result, the last one again and again."""
        self.timeouts.append(timeout_s)
        self.now_s += self.attempt_s
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Count."""
        self.closes += 1

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def pause(self, seconds: float) -> bool:
        """Move the clock."""
        self.pauses.append(seconds)
        self.now_s += seconds
        return self.gives_up


def exporter(script: Script, timeout_s: float = 10.0) -> RetryingExporter:
    """An exporter over `script`."""
    return RetryingExporter(script, timeout_s=timeout_s, clock=script.clock, pause=script.pause)


def test_success_needs_one_attempt(request_: ExportProfilesServiceRequest) -> None:
    """An accepted request is sent once, with the whole timeout; the result says how large it is."""
    script = Script([DONE])

    result = exporter(script).export(request_)

    assert result == ExportResult(outcome=Outcome.ACCEPTED, size_bytes=request_.ByteSize())
    assert script.timeouts == [10.0]
    assert script.pauses == []


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.PARTIAL])
def test_final_outcomes_are_not_retried(
    outcome: Outcome, request_: ExportProfilesServiceRequest
) -> None:
    """What would not help is not done again."""
    result = exporter(Script([ExportResult(outcome=outcome), DONE])).export(request_)

    assert (result.outcome, result.attempts) == (outcome, 1)


def test_transient_failure_is_retried(request_: ExportProfilesServiceRequest) -> None:
    """Delays double, spread by a fifth, and later attempts get the time that is left."""
    script = Script([BUSY, BUSY, DONE])

    result = exporter(script).export(request_)

    assert (result.outcome, result.attempts) == (Outcome.ACCEPTED, 3)
    assert script.pauses[0] == pytest.approx(FIRST_DELAY_S, rel=SPREAD)
    assert script.pauses[1] == pytest.approx(2 * FIRST_DELAY_S, rel=SPREAD)
    assert script.timeouts[2] == pytest.approx(10.0 - sum(script.pauses))


def test_attempts_are_bounded(request_: ExportProfilesServiceRequest) -> None:
    """A receiver that stays busy is left alone after a few attempts."""
    result = exporter(Script([BUSY]), timeout_s=1e6).export(request_)

    assert (result.outcome, result.attempts) == (Outcome.RETRYABLE, MAX_ATTEMPTS)


def test_time_is_bounded(request_: ExportProfilesServiceRequest) -> None:
    """No pause begins that would end after the timeout."""
    script = Script([BUSY], attempt_s=3.0)

    result = exporter(script, timeout_s=7.0).export(request_)

    assert (result.outcome, result.attempts) == (Outcome.RETRYABLE, 2)
    assert script.now_s <= 107.0


def test_requested_delay_is_kept(request_: ExportProfilesServiceRequest) -> None:
    """A delay that the receiver names replaces ours."""
    busy = ExportResult(outcome=Outcome.RETRYABLE, retry_after_s=4.0)
    script = Script([busy, DONE])

    exporter(script).export(request_)

    assert script.pauses == [4.0]


def test_long_requested_delay_is_handed_back(request_: ExportProfilesServiceRequest) -> None:
    """A delay beyond the timeout is not slept but reported, so that it can be kept elsewhere."""
    busy = ExportResult(outcome=Outcome.RETRYABLE, retry_after_s=60.0)
    script = Script([busy])

    result = exporter(script).export(request_)

    assert (result.outcome, result.retry_after_s) == (Outcome.RETRYABLE, 60.0)
    assert script.pauses == []


def test_close_ends_the_wait(request_: ExportProfilesServiceRequest) -> None:
    """An exporter that is closed while it waits does not try again."""
    script = Script([BUSY, DONE])
    script.gives_up = True

    assert exporter(script).export(request_).outcome is Outcome.RETRYABLE


def test_closed_exporter_rejects(request_: ExportProfilesServiceRequest) -> None:
    """After close nothing is sent."""
    script = Script([DONE])
    closed = exporter(script)
    closed.close()

    result = closed.export(request_)

    assert (result.outcome, result.message) == (Outcome.REJECTED, "the exporter is closed")
    assert script.timeouts == []
    assert script.closes == 1


def test_unknown_exception_is_a_rejection(request_: ExportProfilesServiceRequest) -> None:
    """Whatever a transport raises becomes a result, with the name of the error."""
    result = exporter(Script([ValueError("odd state")])).export(request_)

    assert (result.outcome, result.message) == (Outcome.REJECTED, "ValueError: odd state")
