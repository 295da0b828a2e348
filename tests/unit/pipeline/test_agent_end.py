"""How the agent ends: within its deadline whatever the receiver does, with books that are complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.live import LiveOptions
from otel_gpuflame.events.records import Event
from otel_gpuflame.export import OtlpOptions, self_telemetry
from otel_gpuflame.export.options import SelfTelemetryOptions
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.pipeline import AgentControl, AgentOptions, agent
from otel_gpuflame.pipeline.agent import Agent
from tests.integration.collector.sink import OtlpSink
from tests.unit.export.deliveries import check
from tests.unit.pipeline.test_watching import FakeLive, wait
from tests.unit.profile.builders import UNIX_OFFSET_NS, counters, usual

NOWHERE = OtlpOptions(protocol="grpc", endpoint="127.0.0.1:9", plaintext=True)


class StoppingLive(FakeLive):
    """A capture in which the agent is told to stop when its rounds are over; the last events come at the end."""

    control: AgentControl
    goes_on: threading.Event
    """Capture ends when this is set: the agent's end then begins at a known moment."""
    last: Sequence[Event] = ()

    def __exit__(self, *error: object) -> None:
        assert any(error) or self.goes_on.wait(600)

    def step(self, _timeout_ns: int) -> Sequence[Event]:
        if len(self.rounds) == 1:
            self.control.stop.set()
        return self.rounds.pop(0)

    def finish(self) -> Sequence[Event]:
        return self.last


class Hanging:
    """An exporter whose request does not come back: until it is closed, or (`for_good`) not even then."""

    def __init__(self, *, for_good: bool = False) -> None:
        self.entered = threading.Event()
        self.closed = threading.Event()
        self.released = threading.Event()
        self.for_good = for_good

    def export(self, _request: ExportProfilesServiceRequest) -> ExportResult:
        self.entered.set()
        (self.released if self.for_good else self.closed).wait()
        return ExportResult(outcome=Outcome.REJECTED, message="the exporter is closed")

    def close(self) -> None:
        self.closed.set()


class Accepting:
    """An exporter that takes everything."""

    def __init__(self) -> None:
        self.entered = threading.Event()

    def export(self, _request: ExportProfilesServiceRequest) -> ExportResult:
        self.entered.set()
        return ExportResult(outcome=Outcome.ACCEPTED)

    def close(self) -> None:
        pass


def run(
    monkeypatch: pytest.MonkeyPatch,
    exporter: Hanging | Accepting,
    telemetry: SelfTelemetryOptions | None = None,
    *,
    findings: OtlpOptions | None = None,
    waits: int = 1,
    services: dict[int, str] | None = None,
    last: Sequence[Event] = (),
) -> Agent:
    """An agent over a fake capture with waits of 2 s in all, which has run to its end.

    `services` by pid; `last`: what capture says when it ends, besides.
    """
    control = AgentControl()
    live = StoppingLive([usual()[1:], [counters(wait={"seen": 2, "sent": 1})]])
    live.control, live.goes_on = control, exporter.entered
    live.services = services or live.services
    live.last = [*(wait(1, 2_000_000_000 // waits) for _ in range(waits)), *last]

    def open_live(_options: LiveOptions, *, counters: DeviceCounters) -> StoppingLive:
        assert counters.take() == []
        return live

    monkeypatch.setattr(agent, "unix_offset_ns", lambda: UNIX_OFFSET_NS)
    monkeypatch.setattr(agent, "trap_cost_ns", lambda: 1_000.0)
    monkeypatch.setattr(agent, "LiveCapture", open_live)
    monkeypatch.setattr(agent, "open_exporter", lambda _options: exporter)
    shutdown_s = 0.0 if isinstance(exporter, Hanging) else 600.0
    options = AgentOptions(
        destination=NOWHERE,
        shutdown_s=shutdown_s,
        self_telemetry=telemetry,
        findings=findings,
    )
    built = Agent(options, control)
    built.run()
    return built


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_last_profiles_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What capture hands out at its end goes to the receiver before the agent ends."""
    counts = run(monkeypatch, Accepting()).delivery.counts()

    assert (counts.put, counts.exported, counts.waiting) == (1, 1, 0)


def test_a_request_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline closes the exporter under the request; the profile is a counted drop."""
    exporter = Hanging()
    ended = run(monkeypatch, exporter)

    assert exporter.closed.is_set()
    # The agent does not wait long for the thread that sends, which then counts.
    wait_until(lambda: ended.delivery.counts().waiting == 0)
    counts = ended.delivery.counts()
    check(counts)
    assert counts.dropped == (("shutdown", 1),)


def test_a_request_that_cannot_be_ended_is_left_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent ends all the same, and says what was on its way."""
    exporter = Hanging(for_good=True)
    counts = run(monkeypatch, exporter).delivery.counts()
    exporter.released.set()

    check(counts)
    assert counts.waiting == 1
    assert "1 profiles were on their way" in caplog.text


def test_the_last_metrics_say_what_became_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent after the last profiles; a call that never returned is accounted for."""
    with OtlpSink() as sink:
        destination = OtlpOptions(protocol="grpc", endpoint=sink.grpc_endpoint, plaintext=True)
        telemetry = SelfTelemetryOptions(destination=destination, interval_s=3_600)
        built = run(monkeypatch, Accepting(), telemetry)
        (received,) = sink.received

    names = {
        metric.name
        for resource in received.metrics.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert "gpu.wait.time" in names
    snapshot = built.snapshot()
    assert [totals.wait_ns for totals in snapshot.capture.services] == [2_000_000_000]
    events = {(key.outcome, key.reason): count for key, count in snapshot.capture.events}
    assert events.pop(("unlinked", "no_span")) == 1
    assert events == {("seen", ""): 2, ("profiled", ""): 1, ("left_out", "capture_ended"): 1}
    assert not snapshot.capture.is_capturing


def test_without_self_telemetry_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off means no thread and no connection."""

    def start(*_arguments: object) -> None:
        pytest.fail("self-telemetry was started")

    monkeypatch.setattr(self_telemetry, "SelfTelemetry", start)
    assert run(monkeypatch, Accepting()).snapshot().delivery.exported == 1


def test_findings_are_sent_as_log_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last window is judged like every other one."""
    with OtlpSink() as sink:
        destination = OtlpOptions(protocol="grpc", endpoint=sink.grpc_endpoint, plaintext=True)
        run(monkeypatch, Accepting(), findings=destination, waits=100)
        (received,) = sink.received

    ((record,),) = [
        scope.log_records
        for resource in received.logs.resource_logs
        for scope in resource.scope_logs
    ]
    assert record.event_name == "gpu.finding"
    assert "Synchronise in a loop" in record.body.string_value
