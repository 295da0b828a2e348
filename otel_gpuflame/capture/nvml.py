"""The counters of NVIDIA devices, read through NVML: nothing is injected, no root needed, no program slowed down.

GPM (Hopper and later) counts in the device; a share over an interval is the difference of two samples. MIG instances
have counters of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.device_metrics import DeviceMetric

MIN_INTERVAL_NS: Final = 100_000_000
"""NVML: samples that lie closer together give no values."""

_MIB: Final = float(1 << 20)
_PERCENT: Final = 0.01
_GPM: Final = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: (DeviceMetric.GRAPHICS_ACTIVE, _PERCENT),
    pynvml.NVML_GPM_METRIC_SM_UTIL: (DeviceMetric.SM_ACTIVE, _PERCENT),
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: (DeviceMetric.SM_OCCUPANCY, _PERCENT),
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: (DeviceMetric.TENSOR_ACTIVE, _PERCENT),
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: (DeviceMetric.DRAM_ACTIVE, _PERCENT),
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: (DeviceMetric.PCIE_TRANSMIT, _MIB),
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: (DeviceMetric.PCIE_RECEIVE, _MIB),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: (DeviceMetric.NVLINK_TRANSMIT, _MIB),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: (DeviceMetric.NVLINK_RECEIVE, _MIB),
}
"""Metric of GPM -> (ours, what one of its units is in ours)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One value; `tgid` 0 for the whole device, `interval_ns` 0 for a moment."""

    metric: DeviceMetric
    value: float
    interval_ns: int = 0
    tgid: int = 0


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """What one device, or MIG instance, said at `time_ns`."""

    uuid: str
    model: str
    time_ns: int
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A whole device, whatever instances it is cut into."""

    uuid: str
    model: str


@dataclass(slots=True)
class _Device:
    """One device or MIG instance. GPM samples belong to the parent device and a GPU instance of it."""

    handle: Any
    uuid: str
    model: str
    gpm_parent: Any = None
    """None: the device has no GPM."""
    gpu_instance: int | None = None
    last_sample: Any = None
    last_sample_ns: int = 0
    last_ns: int = 0
    last_process_us: int = 0


_Read = Callable[[_Device, int], list[Reading]]


@dataclass(slots=True)
class NvmlSampler:
    """Context manager: entering loads NVML. Raises SourceUnavailable where there is no NVIDIA driver."""

    failures: int = 0
    """Readings that NVML refused; a device that has fallen off the bus refuses all."""
    boards: dict[str, Board] = field(default_factory=dict)
    """By PCI bus id, as `bus_id` writes it."""
    _devices: list[_Device] = field(default_factory=list)

    @property
    def without_shares(self) -> tuple[str, ...]:
        """Models of devices that have no GPM."""
        return tuple(sorted({each.model for each in self._devices if each.gpm_parent is None}))

    def __enter__(self) -> NvmlSampler:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise SourceUnavailable(
                f"device counters: NVML cannot be used ({error}); install the NVIDIA driver, or in a container "
                "ask for its `utility` capability"
            ) from error
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._devices += _instances(handle)
                self._note_board(handle)
        except pynvml.NVMLError as error:
            self.__exit__()
            raise SourceUnavailable(f"device counters: NVML names no devices ({error})") from error
        return self

    def __exit__(self, *_error: object) -> None:
        for device in self._devices:
            if device.last_sample is not None:
                pynvml.nvmlGpmSampleFree(device.last_sample)
        self._devices = []
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def sample(self, now_ns: int) -> list[DeviceReadings]:
        """One round over all devices; shares from the second round on. `now_ns`: CLOCK_MONOTONIC."""
        return [self._sample_device(device, now_ns) for device in self._devices]

    def _note_board(self, handle: Any) -> None:
        """Where a device is, for errors that the driver reports by its place; without it they have no device."""
        with contextlib.suppress(pynvml.NVMLError):
            place = bus_id(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            self.boards[place] = Board(uuid, _text(pynvml.nvmlDeviceGetName(handle)))

    def _sample_device(self, device: _Device, now_ns: int) -> DeviceReadings:
        readings: list[Reading] = []
        for read in (_memory, _clock_reasons, _processes, _gpm):
            readings += self._read(read, device, now_ns)
        device.last_ns = now_ns
        return DeviceReadings(device.uuid, device.model, now_ns, tuple(readings))

    def _read(self, read: _Read, device: _Device, now_ns: int) -> list[Reading]:
        try:
            return read(device, now_ns)
        except pynvml.NVMLError_NotSupported:
            return []
        except pynvml.NVMLError:
            self.failures += 1
            return []


def _instances(handle: Any) -> list[_Device]:
    """The MIG instances of a device, or the device itself."""
    model = _text(pynvml.nvmlDeviceGetName(handle))
    gpm_parent = handle if _has_gpm(handle) else None
    instances = [
        _Device(
            handle=instance,
            uuid=_text(pynvml.nvmlDeviceGetUUID(instance)),
            model=model,
            gpm_parent=gpm_parent,
            gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(instance),
        )
        for instance in _mig_handles(handle)
    ]
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    return instances or [_Device(handle=handle, uuid=uuid, model=model, gpm_parent=gpm_parent)]


def _has_gpm(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except pynvml.NVMLError:
        return False


def _mig_handles(handle: Any) -> Iterator[Any]:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0
    except pynvml.NVMLError:
        return
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _memory(device: _Device, _now_ns: int) -> list[Reading]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(device.handle)
    return [
        Reading(DeviceMetric.MEMORY_USED, float(memory.used)),
        Reading(DeviceMetric.MEMORY_TOTAL, float(memory.total)),
    ]


def _clock_reasons(device: _Device, _now_ns: int) -> list[Reading]:
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(device.handle)
    return [Reading(DeviceMetric.CLOCK_REASONS, float(reasons))]


def _processes(device: _Device, now_ns: int) -> list[Reading]:
    """Mean of each process over what NVML has sampled since the last round, at most six times a second."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(device.handle, device.last_process_us)
    except pynvml.NVMLError_NotFound:
        # Nothing has run since then.
        return []
    shares: dict[int, list[int]] = {}
    for sample in samples:
        device.last_process_us = max(device.last_process_us, sample.timeStamp)
        shares.setdefault(sample.pid, []).append(sample.smUtil)
    interval_ns = now_ns - device.last_ns if device.last_ns else 0
    return [
        Reading(DeviceMetric.PROCESS_SM, _PERCENT * sum(each) / len(each), interval_ns, pid)
        for pid, each in sorted(shares.items())
        if pid
    ]


def _gpm(device: _Device, now_ns: int) -> list[Reading]:
    interval_ns = now_ns - device.last_sample_ns
    if device.gpm_parent is None or interval_ns < MIN_INTERVAL_NS:
        return []
    sample = pynvml.nvmlGpmSampleAlloc()
    try:
        if device.gpu_instance is None:
            pynvml.nvmlGpmSampleGet(device.gpm_parent, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(device.gpm_parent, device.gpu_instance, sample)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(sample)
        raise
    previous, device.last_sample = device.last_sample, sample
    device.last_sample_ns = now_ns
    if previous is None:
        return []
    try:
        return _gpm_shares(previous, sample, interval_ns)
    finally:
        pynvml.nvmlGpmSampleFree(previous)


def _gpm_shares(before: Any, after: Any, interval_ns: int) -> list[Reading]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_GPM)
    request.sample1, request.sample2 = before, after
    for entry, metric in zip(request.metrics, _GPM, strict=False):
        entry.metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    readings = []
    for entry in request.metrics[: len(_GPM)]:
        metric, unit = _GPM[entry.metricId]
        # Devices without NVLink say so for that metric alone.
        if entry.nvmlReturn == pynvml.NVML_SUCCESS:
            readings.append(Reading(metric, entry.value * unit, interval_ns))
    return readings


def _text(value: str | bytes) -> str:
    """Older versions of the binding return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def bus_id(text: str) -> str:
    """A PCI bus id as the kernel writes it: NVML has capitals, and 8 digits of the domain. As it is if it is none."""
    domain, _, rest = text.strip().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.lower()}"
    except ValueError:
        return text
