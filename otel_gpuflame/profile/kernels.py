"""Which kernels ran with which shapes: executions as columns that can be grouped, and groups of them as `KernelUse`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.apis import Runtime
from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known import Known
from otel_gpuflame.profile.model import KernelUse

_SHIFT_32 = np.uint64(32)
_LOW: Final = 0xFFFFFFFF
_MOST: Final = 64
"""Uses that a bundle keeps: those of the most time. A program with shapes that vary has thousands."""


def find_kernels(rows: ExecutionArray) -> ExecutionArray:
    """The kernels among executions, those without times left out."""
    is_kernel = (rows["kind"] == GpuKind.KERNEL) & (rows["end_ns"] > rows["start_ns"])
    return rows.take(np.flatnonzero(is_kernel & (rows["start_ns"] > 0)))


def kernel_columns(kernels: ExecutionArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Columns of executions of kernels.

    Keys: tgid|registers of a thread, process start, name, device|shared bytes, grid and block in three words.

    Values: executions, nanoseconds.
    """
    grid, block = kernels["grid"].astype(np.uint64), kernels["block"].astype(np.uint64)
    keys = np.empty((7, len(kernels)), np.uint64).T
    keys[:, 0] = kernels["tgid"].astype(np.uint64) << _SHIFT_32 | kernels["registers_per_thread"]
    keys[:, 1] = kernels["process_start_ns"]
    keys[:, 2] = kernels["name"]
    keys[:, 3] = kernels["device"].astype(np.uint64) << _SHIFT_32 | kernels["shared_bytes"]
    keys[:, 4] = grid[:, 0] << _SHIFT_32 | grid[:, 1]
    keys[:, 5] = grid[:, 2] << _SHIFT_32 | block[:, 0]
    keys[:, 6] = block[:, 1] << _SHIFT_32 | block[:, 2]
    values = np.empty((2, len(kernels)), np.int64).T
    values[:, 0] = 1
    values[:, 1] = kernels["end_ns"].astype(np.int64) - kernels["start_ns"].astype(np.int64)
    return keys, values


class KernelUses(NamedTuple):
    """Those of a process that took most time, and how often all ran."""

    longest: tuple[KernelUse, ...]
    executions: int


def kernel_uses(
    groups: Iterable[tuple[list[int], list[int]]], known: Known
) -> dict[int, KernelUses]:
    """Uses by process id, from groups of `kernel_columns`, resolved.

    Kernels on devices of which nothing is known are left out: nothing could be said about them.
    """
    uses: dict[int, list[KernelUse]] = {}
    for key, sums in groups:
        use = _use(key, sums, known)
        if use is not None:
            uses.setdefault(key[0] >> 32, []).append(use)
    return {
        process_id: KernelUses(
            tuple(sorted(found, key=lambda use: -use.time_ns)[:_MOST]),
            sum(use.executions for use in found),
        )
        for process_id, found in uses.items()
    }


def _use(key: list[int], sums: list[int], known: Known) -> KernelUse | None:
    device = known.devices.get(key[2] >> 32)
    if device is None:
        return None
    name = known.name(key[1])
    return KernelUse(
        frame=labels.UNNAMED_KERNEL if name is None else labels.kernel_frame(Runtime.CUDA, name),
        device=device,
        grid=(key[3] >> 32, key[3] & _LOW, key[4] >> 32),
        block=(key[4] & _LOW, key[5] >> 32, key[5] & _LOW),
        registers_per_thread=key[0] & 0xFFFF,
        shared_bytes=key[2] & _LOW,
        executions=sums[0],
        time_ns=sums[1],
    )
