"""A host whose clock is set while the agent runs: from then on profiles have the new time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.live import LiveOptions
from otel_gpuflame.events.records import CaptureStart, Event
from otel_gpuflame.pipeline import AgentControl, AgentOptions, agent
from otel_gpuflame.pipeline.agent import Agent
from otel_gpuflame.profile.model import Bundle
from tests.unit.pipeline.test_agent_end import NOWHERE, Accepting
from tests.unit.pipeline.test_watching import FakeLive, wait
from tests.unit.profile.builders import START, UNIX_OFFSET_NS, usual

HOUR_NS = 3_600_000_000_000


class Host:
    """Two sessions, each with one wait; in the first the clock is set, in the other the agent is told to stop."""

    def __init__(self, moved_ns: int) -> None:
        self.offset_ns = UNIX_OFFSET_NS
        self.moved_ns = moved_ns
        self.control = AgentControl()
        self.opened: list[Session] = []

    def open(self, _options: LiveOptions, *, counters: DeviceCounters) -> Session:
        """As the agent opens a capture."""
        assert counters.take() == []
        self.opened.append(Session(self))
        return self.opened[-1]


class Session(FakeLive):
    """One capture of the host."""

    def __init__(self, host: Host) -> None:
        super().__init__([])
        self.host = host
        self.offset_ns = host.offset_ns

    def start_event(self) -> CaptureStart:
        return replace(START, unix_offset_ns=self.offset_ns)

    def step(self, _timeout_ns: int) -> Sequence[Event]:
        if self.host.moved_ns and len(self.host.opened) == 1:
            self.host.offset_ns += self.host.moved_ns
        else:
            self.host.control.stop.set()
        return usual()[1:]

    def finish(self) -> Sequence[Event]:
        return [wait(1, 1_000)]


def sent(monkeypatch: pytest.MonkeyPatch, host: Host) -> list[Bundle]:
    """What an agent on that host gives to its receiver."""
    monkeypatch.setattr(agent, "unix_offset_ns", lambda: host.offset_ns)
    monkeypatch.setattr(agent, "trap_cost_ns", lambda: 1_000.0)
    monkeypatch.setattr(agent, "LiveCapture", host.open)
    monkeypatch.setattr(agent, "open_exporter", lambda _options: Accepting())
    built = Agent(AgentOptions(destination=NOWHERE), host.control)
    bundles: list[Bundle] = []
    monkeypatch.setattr(built.delivery, "put", bundles.append)
    built.run()
    return bundles


@pytest.mark.parametrize("moved_ns", [HOUR_NS, -HOUR_NS])
def test_capture_begins_anew_in_the_new_time(
    moved_ns: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was captured before keeps its time; nothing is lost."""
    first, second = sent(monkeypatch, Host(moved_ns))
    assert second.window.start_unix_ns - first.window.start_unix_ns == moved_ns
    assert f"the clock was set by {moved_ns / 1e9:+.1f} s" in caplog.text


def test_a_clock_that_is_adjusted_gently_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten milliseconds are not worth to attach anew."""
    host = Host(0)
    host.offset_ns += 10_000_000
    monkeypatch.setattr(Session, "start_event", lambda _session: START)
    assert len(sent(monkeypatch, host)) == 1
    assert len(host.opened) == 1
