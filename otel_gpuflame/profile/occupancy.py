"""How much of a device a kernel can fill, by the shape in which it was launched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.profile.model import KernelUse

_WARP_THREADS: Final = 32
_REGISTER_UNIT: Final = 256
"""Registers are given to warps in this many at a time, on all devices since compute capability 3.0."""
_RESERVED_SHARED_BYTES: Final = 1024
"""The driver takes so much of each block's shared memory, since compute capability 8.0."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """`bound`: threads that can be resident at once, as a share (0 to 1) of what the device can hold.

    `limited_by`: what keeps it there: `grid`, `threads`, `blocks`, `registers` or `shared memory`.
    """

    bound: float
    limited_by: str


def occupancy(use: KernelUse) -> Occupancy | None:
    """The bound for a kernel; None where its shape, or a limit of its device, is not known.

    `grid`: the kernel has fewer blocks than could be resident. `blocks`: so many blocks of few threads are resident as
    a multiprocessor takes. A kernel may well run best below 1: only measuring tells.
    """
    device, threads = use.device, math.prod(use.block)
    blocks = math.prod(use.grid)
    if not threads or not blocks or not device.multiprocessors:
        return None
    if not device.threads_per_multiprocessor:
        return None
    limits = {name: limit for name, limit in _resident_blocks(use, threads).items() if limit > 0}
    limits["grid"] = blocks / device.multiprocessors
    limited_by = min(limits, key=lambda name: limits[name])
    resident = min(limits[limited_by], limits["grid"])
    return Occupancy(min(resident * threads / device.threads_per_multiprocessor, 1.0), limited_by)


def _resident_blocks(use: KernelUse, threads: int) -> dict[str, float]:
    """Blocks that one multiprocessor can hold, by what limits them; 0 where a limit is not known."""
    device = use.device
    warps = math.ceil(threads / _WARP_THREADS)
    registers = _round_up(use.registers_per_thread * _WARP_THREADS, _REGISTER_UNIT) * warps
    shared_bytes = use.shared_bytes + _RESERVED_SHARED_BYTES
    return {
        "threads": device.threads_per_multiprocessor // (warps * _WARP_THREADS),
        "blocks": device.blocks_per_multiprocessor,
        "registers": device.registers_per_multiprocessor // registers if registers else 0,
        "shared memory": device.shared_bytes_per_multiprocessor // shared_bytes,
    }


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
