"""What the agent's metrics say of devices, to its end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.nvml import DeviceReadings, Reading
from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetric
from otel_gpuflame.export import OtlpOptions
from otel_gpuflame.export.agent_snapshot import AgentSnapshot
from otel_gpuflame.export.options import SelfTelemetryOptions
from otel_gpuflame.pipeline import agent
from otel_gpuflame.pipeline.status import MAX_SERVICES, OTHER_SERVICES
from tests.integration.collector.sink import OtlpSink
from tests.unit.pipeline.test_agent_end import Accepting, run
from tests.unit.profile.builders import DEVICE, devices

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


def test_the_last_metrics_have_the_last_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device says when it takes the program, and then the agent, with it."""
    error = DeviceError(
        time_ns=5, device=DEVICE.index, bus_id="0000:3b:00.0", code=79, message="fell off the bus"
    )
    with OtlpSink() as sink:
        telemetry = SelfTelemetryOptions(
            destination=OtlpOptions(protocol="grpc", endpoint=sink.grpc_endpoint, plaintext=True),
            interval_s=3_600,
        )
        run(monkeypatch, Accepting(), telemetry, last=[devices(), DeviceErrors((error, error))])
        (received,) = sink.received

    (point,) = [
        point
        for resource in received.metrics.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "hw.errors"
        for point in metric.sum.data_points
    ]
    assert point.as_int == 2
    labels = {pair.key: pair.value.string_value for pair in point.attributes}
    assert (labels["hw.id"], labels["error.type"]) == (DEVICE.uuid, "xid_79")
