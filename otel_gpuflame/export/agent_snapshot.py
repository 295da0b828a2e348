"""What is known of the agent at one moment, for whoever tells about it. It never changes: any thread may read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpuflame.export.delivery import DeliveryCounts


class EventKey(NamedTuple):
    """`kind` of event that met `outcome` at `stage`; `reason` may be empty."""

    stage: str
    kind: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTotals:
    """What the profiles of one service add up to since the agent started. Estimates come from sampling windows."""

    service: str
    wait_ns: int = 0
    estimated_wait_ns: int = 0
    launches: int = 0
    estimated_launches: int = 0
    copied_bytes: int = 0
    estimated_copied_bytes: int = 0
    executed_ns: int = 0
    """On devices, of processes with the injected library."""
    estimated_executed_ns: int = 0
    queued_ns: int = 0
    estimated_queued_ns: int = 0


class ProcessOverhead(NamedTuple):
    """Estimated share of a process's throughput that capture costs it now."""

    pid: int
    service: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSnapshot:
    """The capture."""

    events: tuple[tuple[EventKey, int], ...] = ()
    """How many there were since the agent started."""
    pending: tuple[tuple[str, int], ...] = ()
    """Calls by kind that were seen and are still in the driver or on their way."""
    remarks: tuple[tuple[str, int], ...] = ()
    """Events that are in the profiles, but with something missing or odd."""
    services: tuple[ServiceTotals, ...] = ()
    overflowed_profiles: int = 0
    """Profiles of services beyond the limit, which share one entry of `services`."""
    targets: int = 0
    is_capturing: bool = False
    duty: float = 0.0
    switch_ns: float = 0.0
    """Opening and closing one sampling window, the stall of a busy process."""
    overheads: tuple[ProcessOverhead, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What the counters of a GPU or MIG instance said last; None: it does not say. Shares are from 0 to 1."""

    uuid: str
    model: str
    graphics_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    clock_limits: tuple[str, ...] = ()
    """Names of the reasons that hold the clocks down, lower case; idleness is none."""
    services: tuple[tuple[str, float], ...] = ()
    """(service, share) of the processes that are targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceErrorCount:
    """How often the driver has reported one code (Xid) of one device since the agent started.

    `device` is its UUID, or where it is not known its PCI bus id.
    """

    device: str
    model: str
    code: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSnapshot:
    """Everything that metrics are made of."""

    capture: CaptureSnapshot = field(default_factory=CaptureSnapshot)
    devices: tuple[DeviceState, ...] = ()
    device_errors: tuple[DeviceErrorCount, ...] = ()
    delivery: DeliveryCounts = field(default_factory=DeliveryCounts)
