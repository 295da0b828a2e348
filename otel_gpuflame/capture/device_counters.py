"""Reads the counters of devices in a thread of its own: NVML takes locks, and may take its time where a GPU is ill."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_gpuflame.capture.devices import nvidia_is_loaded
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetrics
from otel_gpuflame.events.executions import Devices
from otel_gpuflame.events.records import Event

if TYPE_CHECKING:
    from otel_gpuflame.capture.nvml import Board, DeviceReadings, NvmlSampler

logger = logging.getLogger(__name__)

SAMPLE_EVERY_S: Final = 1.0
_STOP_S: Final = 2.0
_ANSWER_S: Final = 0.5
_MAX_UNTAKEN: Final = 1 << 12
"""Readings that nobody has taken yet: more than an hour of one device, while capture is off."""


class DeviceCounters:
    """Context manager: samples while it is open. Where there is no NVIDIA driver it says so once, and nothing comes."""

    def __init__(self, every_s: float = SAMPLE_EVERY_S) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._answered = threading.Event()
        self._latest: tuple[DeviceReadings, ...] = ()
        self._untaken: deque[DeviceReadings] = deque(maxlen=_MAX_UNTAKEN)
        self._boards: Mapping[str, Board] = {}
        self._failures = 0
        # A daemon: a driver that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="otel-gpuflame-nvml", daemon=True)

    def __enter__(self) -> DeviceCounters:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    @property
    def failures(self) -> int:
        """Readings that devices have refused, since the start."""
        return self._failures

    def latest(self) -> tuple[DeviceReadings, ...]:
        """What each device said last. From any thread."""
        return self._latest

    def board(self, bus_id: str) -> Board | None:
        """The device at a PCI bus id (`nvml.bus_id`); None where NVML has not named it. From any thread."""
        return self._boards.get(bus_id)

    def take(self) -> list[DeviceReadings]:
        """What was read since the last time, in order. From one thread."""
        taken = []
        while self._untaken:
            taken.append(self._untaken.popleft())
        return taken

    def ask(self) -> None:
        """Have one more round begin at once, so that shares reach up to now."""
        self._answered.clear()
        self._wake.set()

    def wait_for_answer(self) -> None:
        """Until a round has ended since `ask`, or it takes too long."""
        if self._thread.is_alive():
            self._answered.wait(_ANSWER_S)

    def _run(self) -> None:
        # Imported here, since loading the binding takes a twentieth of a second that other commands need not.
        from otel_gpuflame.capture.nvml import NvmlSampler  # noqa: PLC0415

        try:
            with NvmlSampler() as sampler:
                self._boards = sampler.boards
                _tell_missing(sampler)
                while not self._stop.is_set():
                    self._wake.clear()
                    self._round(sampler)
                    self._wake.wait(self._every_s)
        except SourceUnavailable as error:
            # Where the driver is, its library should be too; elsewhere nobody expects counters.
            level = logging.WARNING if nvidia_is_loaded() else logging.INFO
            logger.log(level, "%s", error)
        finally:
            self._answered.set()

    def _round(self, sampler: NvmlSampler) -> None:
        readings = sampler.sample(time.monotonic_ns())
        self._latest = tuple(readings)
        self._untaken.extend(readings)
        self._failures = sampler.failures
        self._answered.set()


def metric_events(readings: Iterable[DeviceReadings], devices: HostDevices) -> list[Event]:
    """Readings as events: devices that are new, then their values."""
    readings = list(readings)
    numbers, fresh = devices.name((each.uuid, each.model) for each in readings)
    rows = np.array(
        [
            (each.time_ns, value.interval_ns, value.value, number, value.tgid, value.metric)
            for number, each in zip(numbers, readings, strict=True)
            for value in each.readings
        ],
        DEVICE_METRIC,
    )
    events: list[Event] = [Devices(tuple(fresh))] if fresh else []
    return events + ([DeviceMetrics(rows)] if len(rows) else [])


def _tell_missing(sampler: NvmlSampler) -> None:
    for model in sampler.without_shares:
        logger.info(
            "device counters: %s has no GPM, which Hopper and later have: no shares, only memory, clocks and processes",
            model,
        )
