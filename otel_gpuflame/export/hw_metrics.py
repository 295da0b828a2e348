"""What the counters of GPUs say, as metrics: names of OpenTelemetry's hardware conventions where they exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from otel_gpuflame.export.agent_snapshot import AgentSnapshot, DeviceState
from otel_gpuflame.export.metric_spec import COUNTER, GAUGE, UP_DOWN, Labels, Point, metric


def _labels(device: DeviceState) -> Labels:
    return {"hw.id": device.uuid, "hw.model": device.model}


def _of_devices(
    value: Callable[[DeviceState], float | None], **labels: str
) -> Callable[[AgentSnapshot], Iterator[Point]]:
    """Points of the devices that say this."""

    def points(now: AgentSnapshot) -> Iterator[Point]:
        for device in now.devices:
            found = value(device)
            if found is not None:
                yield Point(found, {**_labels(device), **labels})

    return points


def _limits(now: AgentSnapshot) -> Iterator[Point]:
    for device in now.devices:
        for reason in device.clock_limits:
            yield Point(1, {**_labels(device), "reason": reason})


def _services(now: AgentSnapshot) -> Iterator[Point]:
    for device in now.devices:
        for service, share in device.services:
            yield Point(share, {**_labels(device), "service.name": service})


def _errors(now: AgentSnapshot) -> Iterator[Point]:
    for each in now.device_errors:
        labels = {"hw.id": each.device, "hw.model": each.model, "hw.type": "gpu"}
        yield Point(each.count, {**labels, "error.type": f"xid_{each.code}"})


HW_METRICS: Final = (
    metric(
        "hw.errors",
        COUNTER,
        "{error}",
        _errors,
        "Errors that the driver has reported of the device",
    ),
    metric(
        "hw.gpu.utilization",
        GAUGE,
        "1",
        _of_devices(lambda device: device.graphics_active, **{"hw.gpu.task": "general"}),
        "Share of the time in which any work was on the device",
    ),
    metric(
        "hw.gpu.memory.usage",
        UP_DOWN,
        "By",
        _of_devices(lambda device: device.memory_used),
        "Memory of the device in use",
    ),
    metric(
        "hw.gpu.memory.limit",
        UP_DOWN,
        "By",
        _of_devices(lambda device: device.memory_total),
        "Memory of the device",
    ),
    metric(
        "gpu.sm.utilization",
        GAUGE,
        "1",
        _of_devices(lambda device: device.sm_active),
        "Share of the multiprocessors that had work",
    ),
    metric(
        "gpu.sm.occupancy",
        GAUGE,
        "1",
        _of_devices(lambda device: device.sm_occupancy),
        "Active warps, as a share of what the multiprocessors can hold",
    ),
    metric(
        "gpu.tensor.utilization",
        GAUGE,
        "1",
        _of_devices(lambda device: device.tensor_active),
        "Share of the time in which tensor cores worked",
    ),
    metric(
        "gpu.dram.utilization",
        GAUGE,
        "1",
        _of_devices(lambda device: device.dram_active),
        "Share of the memory bandwidth that was used",
    ),
    metric(
        "gpu.clocks.limited",
        GAUGE,
        "1",
        _limits,
        "1 for each reason that holds the clocks down now",
    ),
    metric(
        "gpu.service.utilization",
        GAUGE,
        "1",
        _services,
        "Share of the time in which work of a service's processes was on the device, added up over them",
    ),
)
