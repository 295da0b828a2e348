"""What the device did and when: rows and events of the GPU side (docs/decisions/0011-gpu-side.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire_gpu
from otel_gpuflame.events.frames import ProcessKey

ExecutionArray: TypeAlias = NDArray[np.void]
"""Structured array of `EXECUTION`."""

NO_DEVICE: Final = 0xFFFFFFFF
"""`device` of a row whose device is not known."""

_NAME_HANDLES: Final = 1 << 63


def _row_dtype() -> np.dtype[Any]:
    """The record of the injected library, with the process, and with host-wide device and name."""
    widened = {"device": "<u4", "name": "<u8"}
    fields: Mapping[str, Any] = wire_gpu.RECORD.fields or {}
    columns: list[tuple[str, Any]] = [
        (name, widened.get(name, place[0]))
        for name, place in fields.items()
        if not name.startswith("_")
    ]
    columns += [("process_start_ns", "<u8"), ("tgid", "<u4")]
    # Widest first, so that no field lies across a word: numpy works on such columns half as fast.
    columns.sort(key=lambda column: -np.dtype(column[1]).base.itemsize)
    return np.dtype(columns, align=True)


EXECUTION: Final = _row_dtype()
"""Fields of `wire_gpu.RECORD` (`struct ogf_gpu_record`), of kinds `GpuKind` KERNEL to OVERHEAD. Besides:

`tgid`, `process_start_ns`: the process. `device`: index of `DeviceInfo`, `NO_DEVICE` where not known.
`name`: the `handle` under which `Names` has the kernel's name (`name_handle`), 0 where it has none.
"""


_REGION_BITS: Final = 32


def name_handle(offset: int, region: int = 0) -> int:
    """The handle of a kernel's name that a library keeps at 1 + `offset`: no address that a driver gives out.

    `region`: which of its process's libraries, from 0.
    """
    return _NAME_HANDLES | region << _REGION_BITS | offset


@dataclass(frozen=True, slots=True)
class Executions:
    """Executions, launches in the driver, synchronisations and overhead, in the order in which they became known."""

    rows: ExecutionArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A GPU, or a MIG instance. Numbers are 0 where not known."""

    index: int
    """What `device` in rows means; never reused within a capture."""
    uuid: str
    """As NVML writes it: `GPU-` or `MIG-` and 36 characters. Empty for OpenCL devices without one."""
    model: str
    multiprocessors: int = 0
    threads_per_multiprocessor: int = 0
    blocks_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0
    shared_bytes_per_multiprocessor: int = 0


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices, each delivered before the first row that refers to it.

    One may come again, under its index, when more of it is known: the last description holds for all rows.
    """

    devices: tuple[DeviceInfo, ...]


@dataclass(frozen=True, slots=True)
class ExecutionsBegin:
    """From `time_ns` on, everything that `process` gives its devices to do is delivered as `Executions`."""

    process: ProcessKey
    time_ns: int


@dataclass(frozen=True, slots=True)
class ExecutionsEnd:
    """Until `time_ns`. `incomplete` says why something may be missing since the begin, empty: nothing is.

    Comes when everything that belongs to the interval has been delivered.
    """

    process: ProcessKey
    time_ns: int
    incomplete: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionWatermark:
    """Executions of all launches of `process` before `time_ns` have been delivered."""

    process: ProcessKey
    time_ns: int
