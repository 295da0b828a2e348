"""What devices' own counters said, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from otel_gpuflame.cli.tables import human, say
from otel_gpuflame.events.device_metrics import DeviceMetric
from otel_gpuflame.profile.device_faults import DeviceFault
from otel_gpuflame.profile.device_use import DeviceUse

_SHARES: Final = {
    "busy": DeviceMetric.GRAPHICS_ACTIVE,
    "SMs": DeviceMetric.SM_ACTIVE,
    "occupancy": DeviceMetric.SM_OCCUPANCY,
    "tensor": DeviceMetric.TENSOR_ACTIVE,
    "DRAM": DeviceMetric.DRAM_ACTIVE,
}
_RATES: Final = {
    "PCIe": (DeviceMetric.PCIE_TRANSMIT, DeviceMetric.PCIE_RECEIVE),
    "NVLink": (DeviceMetric.NVLINK_TRANSMIT, DeviceMetric.NVLINK_RECEIVE),
}
_UUID_WIDTH: Final = 12
"""`GPU-` and 8 digits: enough to tell devices of a host apart."""


def print_devices(console: Console, uses: Sequence[DeviceUse], limit: int) -> None:
    """A line for each device, the busiest first; nothing where no counters were read."""
    if not uses:
        return
    rows = sorted(uses, key=lambda use: -use.means.get(DeviceMetric.GRAPHICS_ACTIVE, 0.0))
    console.print("[bold]What the counters of devices said[/]")
    for use in rows[:limit]:
        uuid = (use.device.uuid[:_UUID_WIDTH], "dim")
        said = ", ".join(_parts(use))
        console.print(Text.assemble(use.device.model or "unknown", "  ", uuid, f"  {said}"))
    if len(rows) > limit:
        console.print(f"… {len(rows) - limit} more")
    console.print()


def print_faults(console: Console, faults: Sequence[DeviceFault]) -> None:
    """A line for each error of each device; nothing where there was none."""
    for fault in faults:
        device = f"{fault.model} {fault.uuid[:_UUID_WIDTH]}".strip() or "a device"
        times = f"{fault.count} times, the last one: " if fault.count > 1 else ""
        place = f" (PCI {fault.bus_id})" if fault.bus_id else ""
        say(console, f"{device}{place}: Xid {fault.code}: {times}{fault.message}", "red")
    if faults:
        console.print()


def _parts(use: DeviceUse) -> Iterator[str]:
    for name, metric in _SHARES.items():
        if metric in use.means:
            yield f"{name} {100 * use.means[metric]:.1f}%"
    if use.memory_used is not None:
        used = human(use.memory_used, "bytes")
        total = use.memory_total
        yield f"memory {used}" + ("" if total is None else f" of {human(total, 'bytes')}")
    for name, directions in _RATES.items():
        rate = sum(use.means.get(metric, 0.0) for metric in directions)
        if rate:
            yield f"{name} {human(rate, 'bytes')}/s"
    if use.clock_limits:
        reasons = (f"{r.name.lower()} {100 * share:.0f}%" for r, share in use.clock_limits)
        yield f"clocks held down by {', '.join(reasons)} of the time"
