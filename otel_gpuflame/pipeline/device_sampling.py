"""What devices say of themselves, as the metrics of the agent have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from otel_gpuflame.events.device_metrics import ClockReason, DeviceMetric
from otel_gpuflame.export.agent_snapshot import DeviceErrorCount, DeviceState
from otel_gpuflame.profile.device_faults import DeviceFault

if TYPE_CHECKING:
    from otel_gpuflame.capture.nvml import DeviceReadings, Reading

_FIELDS: Final = (
    DeviceMetric.GRAPHICS_ACTIVE,
    DeviceMetric.SM_ACTIVE,
    DeviceMetric.SM_OCCUPANCY,
    DeviceMetric.TENSOR_ACTIVE,
    DeviceMetric.DRAM_ACTIVE,
    DeviceMetric.MEMORY_USED,
    DeviceMetric.MEMORY_TOTAL,
)
"""Metrics that are fields of `DeviceState` under their own names."""


def device_states(
    devices: Iterable[DeviceReadings], service_of: Callable[[int], str | None]
) -> tuple[DeviceState, ...]:
    """For metrics; `service_of` knows what they call the service of a target's pid, None for processes that are none.

    Of names there must be few in the agent's life: each is kept for good.
    """
    return tuple(_state(device, service_of) for device in devices)


def error_counts(faults: Iterable[DeviceFault]) -> tuple[DeviceErrorCount, ...]:
    """For metrics."""
    return tuple(
        DeviceErrorCount(
            device=fault.uuid or fault.bus_id,
            model=fault.model,
            code=fault.code,
            count=fault.count,
        )
        for fault in faults
    )


def _state(device: DeviceReadings, service_of: Callable[[int], str | None]) -> DeviceState:
    values = {each.metric: each.value for each in device.readings if not each.tgid}
    fields = {metric.name.lower(): values[metric] for metric in _FIELDS if metric in values}
    return DeviceState(
        uuid=device.uuid,
        model=device.model,
        clock_limits=_limits(int(values.get(DeviceMetric.CLOCK_REASONS, 0))),
        services=_services(device.readings, service_of),
        **fields,
    )


def _limits(reasons: int) -> tuple[str, ...]:
    return tuple(
        reason.name.lower()
        for reason in ClockReason
        if reasons & reason and reason is not ClockReason.GPU_IDLE
    )


def _services(
    readings: Iterable[Reading], service_of: Callable[[int], str | None]
) -> tuple[tuple[str, float], ...]:
    shares: dict[str, float] = {}
    for each in readings:
        service = service_of(each.tgid) if each.metric is DeviceMetric.PROCESS_SM else None
        if service is not None:
            shares[service] = shares.get(service, 0.0) + each.value
    return tuple(sorted(shares.items()))
