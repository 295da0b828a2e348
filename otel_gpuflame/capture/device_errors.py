"""Errors that NVIDIA's driver reports (Xid), as events, and said at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from otel_gpuflame.capture.bpf.decode import RawXid
from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.executions import NO_DEVICE, DeviceInfo, Devices
from otel_gpuflame.events.records import Event

logger = logging.getLogger(__name__)


def error_events(
    raws: Sequence[RawXid], counters: DeviceCounters | None, devices: HostDevices
) -> list[Event]:
    """Errors, after devices that are new. NVML knows which device is where; without it they have none."""
    fresh: list[DeviceInfo] = []
    errors = []
    for raw in raws:
        board = None if counters is None else counters.board(raw.bus_id)
        number = NO_DEVICE
        if board is not None:
            (number,), found = devices.name([(board.uuid, board.model)])
            fresh += found
        errors.append(
            DeviceError(
                time_ns=raw.time_ns,
                device=number,
                bus_id=raw.bus_id,
                code=raw.code,
                message=raw.message,
            )
        )
        name = "a device" if board is None else f"{board.model} {board.uuid}"
        logger.warning("%s (PCI %s): Xid %d: %s", name, raw.bus_id, raw.code, raw.message)
    events: list[Event] = [Devices(tuple(fresh))] if fresh else []
    return events + ([DeviceErrors(tuple(errors))] if errors else [])
