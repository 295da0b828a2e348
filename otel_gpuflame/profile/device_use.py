"""What the counters of devices say over a whole capture: shares as means over time, memory at its most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from otel_gpuflame.events.device_metrics import (
    ClockReason,
    DeviceMetric,
    DeviceMetricArray,
    DeviceMetrics,
)
from otel_gpuflame.events.executions import DeviceInfo, Devices
from otel_gpuflame.events.records import Event
from otel_gpuflame.profile.known_devices import KnownDevices

_MAX_DEVICES: Final = 1 << 12
"""A capture may name any number."""
_OF_PROCESSES: Final = DeviceMetric.PROCESS_SM
_MOMENTS: Final = frozenset(
    {DeviceMetric.MEMORY_USED, DeviceMetric.MEMORY_TOTAL, DeviceMetric.CLOCK_REASONS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One device. What it did not say is missing from the mappings, and None."""

    device: DeviceInfo
    means: Mapping[DeviceMetric, float]
    """Shares from 0 to 1, and bytes a second: means over `covered_ns`."""
    covered_ns: Mapping[DeviceMetric, int]
    memory_used: float | None = None
    """Bytes, the most of all readings."""
    memory_total: float | None = None
    clock_limits: tuple[tuple[ClockReason, float], ...] = ()
    """Why clocks were held down, and in which share of the readings; most often first. Idleness is no reason."""


@dataclass(slots=True)
class _Sums:
    values: defaultdict[DeviceMetric, float] = field(default_factory=lambda: defaultdict(float))
    """Value × nanoseconds."""
    covered_ns: Counter[DeviceMetric] = field(default_factory=Counter)
    most: dict[DeviceMetric, float] = field(default_factory=dict)
    reasons: Counter[ClockReason] = field(default_factory=Counter)
    reason_readings: int = 0


class DeviceUses:
    """Feed it every event; `uses` is what devices have said so far."""

    def __init__(self) -> None:
        self._devices = KnownDevices()
        self._sums: dict[int, _Sums] = {}

    def feed(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Devices):
            self._devices.add(event.devices)
        elif isinstance(event, DeviceMetrics):
            self._add(event.rows)

    def uses(self) -> tuple[DeviceUse, ...]:
        """Devices that have said something, in the order of their numbers."""
        return tuple(
            _use(self._devices.get(number) or DeviceInfo(index=number, uuid="", model=""), sums)
            for number, sums in sorted(self._sums.items())
        )

    def _add(self, rows: DeviceMetricArray) -> None:
        # Numbers of later versions mean nothing here, and a value may be anything in a capture.
        is_known = np.isin(rows["metric"], [each for each in DeviceMetric if each != _OF_PROCESSES])
        for row in rows[is_known & np.isfinite(rows["value"])]:
            number, metric = int(row["device"]), DeviceMetric(int(row["metric"]))
            if number not in self._sums and len(self._sums) >= _MAX_DEVICES:
                continue
            sums, value = self._sums.setdefault(number, _Sums()), float(row["value"])
            if metric == DeviceMetric.CLOCK_REASONS:
                sums.reason_readings += 1
                sums.reasons.update(each for each in ClockReason if int(value) & each)
            elif metric in _MOMENTS:
                sums.most[metric] = max(sums.most.get(metric, 0.0), value)
            else:
                interval_ns = int(row["interval_ns"])
                sums.values[metric] += value * interval_ns
                sums.covered_ns[metric] += interval_ns


def _use(device: DeviceInfo, sums: _Sums) -> DeviceUse:
    covered = {metric: ns for metric, ns in sums.covered_ns.items() if ns}
    reasons = Counter({r: n for r, n in sums.reasons.items() if r is not ClockReason.GPU_IDLE})
    return DeviceUse(
        device=device,
        means={metric: sums.values[metric] / ns for metric, ns in covered.items()},
        covered_ns=covered,
        memory_used=sums.most.get(DeviceMetric.MEMORY_USED),
        memory_total=sums.most.get(DeviceMetric.MEMORY_TOTAL),
        clock_limits=tuple((r, n / sums.reason_readings) for r, n in reasons.most_common()),
    )
