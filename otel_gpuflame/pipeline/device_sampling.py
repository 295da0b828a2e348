"""Reads the counters of devices in a thread of its own: NVML takes locks, and may take its time where a GPU is ill."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.device_metrics import ClockReason, DeviceMetric
from otel_gpuflame.export.agent_snapshot import DeviceState

if TYPE_CHECKING:
    from otel_gpuflame.capture.nvml import DeviceReadings, Reading

logger = logging.getLogger(__name__)

SAMPLE_EVERY_S: Final = 1.0
_STOP_S: Final = 2.0
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


class DeviceSampling:
    """Context manager: samples while it is open. Where there is no NVIDIA driver it says so once, and nothing comes."""

    def __init__(self, every_s: float = SAMPLE_EVERY_S) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._latest: tuple[DeviceReadings, ...] = ()
        # A daemon: a driver that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="otel-gpuflame-nvml", daemon=True)

    def __enter__(self) -> DeviceSampling:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def latest(self) -> tuple[DeviceReadings, ...]:
        """What each device said last. From any thread."""
        return self._latest

    def _run(self) -> None:
        # Imported here, since loading the binding takes a twentieth of a second that other commands need not.
        from otel_gpuflame.capture.nvml import NvmlSampler  # noqa: PLC0415

        try:
            with NvmlSampler() as sampler:
                while not self._stop.is_set():
                    self._latest = tuple(sampler.sample(time.monotonic_ns()))
                    self._stop.wait(self._every_s)
        except SourceUnavailable as error:
            logger.info("%s", error)


def device_states(
    devices: Iterable[DeviceReadings], service_of: Callable[[int], str | None]
) -> tuple[DeviceState, ...]:
    """For metrics; `service_of` knows the service of a target's pid, None for processes that are none."""
    return tuple(_state(device, service_of) for device in devices)


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
