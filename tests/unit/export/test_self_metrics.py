"""The metrics that a hand-made state of the agent gives: names, units, kinds, attributes and values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    InMemoryMetricReader,
    MetricsData,
    Sum,
)

from otel_gpuflame.export.agent_snapshot import (
    AgentSnapshot,
    CaptureSnapshot,
    DeviceErrorCount,
    DeviceState,
    EventKey,
    ProcessOverhead,
    ServiceTotals,
)
from otel_gpuflame.export.delivery import DeliveryCounts
from otel_gpuflame.export.self_metrics import METRICS, OVERHEAD, register
from otel_gpuflame.export.self_telemetry import agent_resource, with_overheads

ROOT = Path(__file__).resolve().parents[3]
STATE = AgentSnapshot(
    capture=CaptureSnapshot(
        events=(
            (EventKey("source", "launch", "seen"), 100),
            (EventKey("source", "launch", "lost", "ring_full"), 3),
        ),
        pending=(("wait", 2),),
        remarks=(("late for their window", 4),),
        services=(
            ServiceTotals(
                service="train",
                wait_ns=2_500_000_000,
                estimated_wait_ns=500_000_000,
                launches=7,
                estimated_launches=1_000,
                copied_bytes=64,
                estimated_copied_bytes=4_096,
                executed_ns=1_500_000_000,
                estimated_executed_ns=20_000_000_000,
                queued_ns=500_000_000,
                estimated_queued_ns=3_000_000_000,
            ),
            ServiceTotals(service="serve", wait_ns=1),
        ),
        overflowed_profiles=5,
        targets=3,
        is_capturing=True,
        duty=0.25,
        switch_ns=40_000_000.0,
        overheads=(ProcessOverhead(4242, "train", 0.008), ProcessOverhead(77, "serve", 0.001)),
    ),
    devices=(
        DeviceState(
            uuid="GPU-1",
            model="H200",
            graphics_active=0.75,
            sm_active=0.5,
            sm_occupancy=0.25,
            tensor_active=0.125,
            dram_active=0.0,
            memory_used=600.0,
            memory_total=1000.0,
            clock_limits=("hw_thermal", "sw_power_cap"),
            services=(("serve", 0.25), ("train", 0.5)),
        ),
        DeviceState(uuid="MIG-2", model="H200", sm_active=0.5),
    ),
    device_errors=(
        DeviceErrorCount(device="GPU-1", model="H200", code=31, count=3),
        DeviceErrorCount(device="0000:3b:00.0", model="", code=79, count=1),
    ),
    delivery=DeliveryCounts(
        put=50,
        exported=40,
        rejected=2,
        dropped=(("expired", 3), ("queue_full", 1)),
        waiting=4,
        waiting_samples=900,
        waiting_bytes=123_456,
        retries=6,
    ),
)
Points = dict[frozenset[tuple[str, Any]], float]


def collected(state: AgentSnapshot) -> MetricsData:
    """What the SDK makes of a state."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=agent_resource(), shutdown_on_exit=False)
    register(provider.get_meter("otel_gpuflame"), lambda: state)
    data = reader.get_metrics_data()
    assert data is not None
    provider.shutdown()
    return data


@pytest.fixture(scope="module")
def data() -> MetricsData:
    """Metrics of STATE, with those of processes."""
    return with_overheads(collected(STATE), STATE, 99)


def metric(data: MetricsData, name: str) -> Any:
    """The one metric of a name."""
    found = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
    ]
    assert len(found) == 1, name
    return found[0]


def points(data: MetricsData, name: str) -> Points:
    """Values by attributes."""
    return {
        frozenset((point.attributes or {}).items()): point.value
        for point in metric(data, name).data.data_points
    }


def labels(**attributes: Any) -> frozenset[tuple[str, Any]]:
    """Attributes; `__` in a name stands for a dot."""
    return frozenset((name.replace("__", "."), value) for name, value in attributes.items())


NO_LABELS = labels()
GPU = labels(hw__id="GPU-1", hw__model="H200")
MIG = labels(hw__id="MIG-2", hw__model="H200")
"""Says no more than one thing: what a device does not say is left out, and 0 is a value."""


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [
        (
            "gpu.wait.time",
            "s",
            {
                labels(service__name="train", estimated=False): 2.5,
                labels(service__name="train", estimated=True): 0.5,
                labels(service__name="serve", estimated=False): 1e-9,
                labels(service__name="serve", estimated=True): 0,
            },
        ),
        (
            "gpu.launches",
            "{launch}",
            {
                labels(service__name="train", estimated=False): 7,
                labels(service__name="train", estimated=True): 1_000,
                labels(service__name="serve", estimated=False): 0,
                labels(service__name="serve", estimated=True): 0,
            },
        ),
        (
            "gpu.copy.io",
            "By",
            {
                labels(service__name="train", estimated=False): 64,
                labels(service__name="train", estimated=True): 4_096,
                labels(service__name="serve", estimated=False): 0,
                labels(service__name="serve", estimated=True): 0,
            },
        ),
        (
            "gpu.time",
            "s",
            {
                labels(service__name="train", estimated=False): 1.5,
                labels(service__name="train", estimated=True): 20,
                labels(service__name="serve", estimated=False): 0,
                labels(service__name="serve", estimated=True): 0,
            },
        ),
        (
            "gpu.queue.time",
            "s",
            {
                labels(service__name="train", estimated=False): 0.5,
                labels(service__name="train", estimated=True): 3,
                labels(service__name="serve", estimated=False): 0,
                labels(service__name="serve", estimated=True): 0,
            },
        ),
        (
            "otel_gpuflame.events",
            "{event}",
            {
                labels(stage="source", kind="launch", outcome="seen"): 100,
                labels(stage="source", kind="launch", outcome="lost", reason="ring_full"): 3,
            },
        ),
        ("otel_gpuflame.events.pending", "{event}", {labels(kind="wait"): 2}),
        ("otel_gpuflame.events.remarked", "{event}", {labels(remark="late for their window"): 4}),
        (
            "otel_gpuflame.profiles",
            "{profile}",
            {
                labels(outcome="exported"): 40,
                labels(outcome="rejected"): 2,
                labels(outcome="dropped", reason="expired"): 3,
                labels(outcome="dropped", reason="queue_full"): 1,
            },
        ),
        ("otel_gpuflame.export.retries", "{request}", {NO_LABELS: 6}),
        ("otel_gpuflame.queue.samples", "{sample}", {NO_LABELS: 900}),
        ("otel_gpuflame.queue.size", "By", {NO_LABELS: 123_456}),
        ("otel_gpuflame.targets", "{process}", {NO_LABELS: 3}),
        ("otel_gpuflame.capturing", "1", {NO_LABELS: 1}),
        ("otel_gpuflame.duty", "1", {NO_LABELS: 0.25}),
        ("otel_gpuflame.window.switch.duration", "s", {NO_LABELS: 0.04}),
        ("otel_gpuflame.services.overflow", "{profile}", {NO_LABELS: 5}),
        (
            "hw.errors",
            "{error}",
            {
                frozenset({*GPU, *labels(hw__type="gpu", error__type="xid_31")}): 3,
                labels(
                    hw__id="0000:3b:00.0", hw__model="", hw__type="gpu", error__type="xid_79"
                ): 1,
            },
        ),
        (
            "hw.gpu.utilization",
            "1",
            {frozenset({*GPU, *labels(hw__gpu__task="general")}): 0.75},
        ),
        ("hw.gpu.memory.usage", "By", {GPU: 600}),
        ("hw.gpu.memory.limit", "By", {GPU: 1000}),
        ("gpu.sm.utilization", "1", {GPU: 0.5, MIG: 0.5}),
        ("gpu.sm.occupancy", "1", {GPU: 0.25}),
        ("gpu.tensor.utilization", "1", {GPU: 0.125}),
        ("gpu.dram.utilization", "1", {GPU: 0.0}),
        (
            "gpu.clocks.limited",
            "1",
            {
                frozenset({*GPU, *labels(reason="hw_thermal")}): 1,
                frozenset({*GPU, *labels(reason="sw_power_cap")}): 1,
            },
        ),
        (
            "gpu.service.utilization",
            "1",
            {
                frozenset({*GPU, *labels(service__name="serve")}): 0.25,
                frozenset({*GPU, *labels(service__name="train")}): 0.5,
            },
        ),
        (
            "otel_gpuflame.overhead",
            "1",
            {
                labels(process__pid=4242, service__name="train"): 0.008,
                labels(process__pid=77, service__name="serve"): 0.001,
            },
        ),
    ],
)
def test_values_and_attributes(data: MetricsData, name: str, unit: str, expected: Points) -> None:
    """Each metric has its unit, and a point for each combination of attributes."""
    assert metric(data, name).unit == unit
    assert points(data, name) == expected


def test_the_table_above_is_complete(data: MetricsData) -> None:
    """No metric is sent that the tests do not know."""
    (resource,) = data.resource_metrics
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert names == {spec.name for spec in METRICS} | {OVERHEAD.name}
    (mark,) = test_values_and_attributes.pytestmark  # type: ignore[attr-defined]
    assert names == {case[0] for case in mark.args[1]}


def test_counters_are_cumulative_and_only_grow(data: MetricsData) -> None:
    """Totals since the start: a backend that misses an export loses nothing."""
    kinds = {spec.name: spec.instrument.value for spec in METRICS}
    for name, kind in kinds.items():
        values = metric(data, name).data
        if kind == "gauge":
            assert isinstance(values, Gauge), name
            continue
        assert isinstance(values, Sum), name
        assert values.aggregation_temporality is AggregationTemporality.CUMULATIVE
        assert values.is_monotonic is (kind == "counter"), name


def test_the_resource_is_the_agent() -> None:
    """Metrics of all targets come from one resource, which is none of them."""
    attributes = agent_resource().attributes
    assert attributes["service.name"] == "otel_gpuflame"
    assert attributes["service.version"]
    assert attributes["host.name"]
    assert "process.pid" not in attributes


def test_the_environment_adds_to_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DaemonSet says on which node the agent runs; whose service it is stays fixed."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1,service.name=train")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "train")
    attributes = agent_resource().attributes
    assert attributes["k8s.node.name"] == "n1"
    assert attributes["service.name"] == "otel_gpuflame"


def test_processes_that_have_ended_leave_nothing_behind() -> None:
    """Overhead has the pid as an attribute: only the living are sent, however many there have been."""
    base = collected(STATE)
    for pid in range(3_000):
        overheads = (ProcessOverhead(pid, "short", 0.001),)
        state = replace(STATE, capture=replace(STATE.capture, overheads=overheads))
        assert len(points(with_overheads(base, state, pid), OVERHEAD.name)) == 1


def test_without_processes_there_is_no_overhead() -> None:
    """Metrics without points are not sent."""
    state = replace(STATE, capture=replace(STATE.capture, overheads=()))
    base = collected(state)
    assert with_overheads(base, state, 1) is base


def test_an_idle_agent_sends_what_it_knows() -> None:
    """Before the first event there are totals of zero, and no service."""
    data = collected(AgentSnapshot())
    assert points(data, "otel_gpuflame.capturing") == {NO_LABELS: 0}
    (resource,) = data.resource_metrics
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert "gpu.wait.time" not in names


def test_the_document_lists_every_metric_with_its_unit() -> None:
    """docs/self-telemetry.md is where people look before they write an alert."""
    text = (ROOT / "docs" / "self-telemetry.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z-]+) \| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(
        (spec.name, spec.instrument.value.replace("up-down counter", "up-down"), spec.unit)
        for spec in (*METRICS, OVERHEAD)
    )
