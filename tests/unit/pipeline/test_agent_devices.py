"""What the agent's metrics say of devices, to its end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.nvml import DeviceReadings, Reading
from otel_gpuflame.events.device_metrics import DeviceMetric
from otel_gpuflame.export.agent_snapshot import AgentSnapshot
from otel_gpuflame.pipeline import agent
from otel_gpuflame.pipeline.status import MAX_SERVICES, OTHER_SERVICES
from tests.unit.pipeline.test_agent_end import Accepting, run

SHARE = 0.25


@dataclass(frozen=True)
class FakeCounters(DeviceCounters):
    """Counters of one device, which has work of these processes."""

    pids: range

    def __enter__(self) -> FakeCounters:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def latest(self) -> tuple[DeviceReadings, ...]:
        readings = tuple(Reading(DeviceMetric.PROCESS_SM, SHARE, 10, pid) for pid in self.pids)
        return (DeviceReadings("GPU-1", "H200", 5, readings),)

    def take(self) -> list[DeviceReadings]:
        return []


def ended(monkeypatch: pytest.MonkeyPatch, services: dict[int, str]) -> AgentSnapshot:
    """What is known at the end of an agent whose targets, all of them on a device, have these services."""
    pids = range(1, 1 + len(services))
    monkeypatch.setattr(agent, "DeviceCounters", lambda: FakeCounters(pids))
    return run(monkeypatch, Accepting(), services=services).snapshot()


def test_names_of_services_are_bounded_in_metrics_of_devices_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SDK keeps each name for good: after so many, services share one, as in all other metrics."""
    many = MAX_SERVICES + 50
    now = ended(monkeypatch, {pid: f"s{pid}" for pid in range(1, 1 + many)})
    (device,) = now.devices
    shares = dict(device.services)
    assert len(shares) == MAX_SERVICES + 1
    assert shares[OTHER_SERVICES] == 50 * SHARE
    assert sum(shares.values()) == many * SHARE
    # All have the same names.
    named = {totals.service for totals in now.capture.services}
    assert named <= shares.keys()
