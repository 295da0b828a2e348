"""What threads did besides calling the driver library: on the CPU, off it, in the GPU's kernel driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind

_DRIVER_SHIFT: Final = np.uint64(32)
_COMMAND_MASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Columns over those rows that are no driver calls; `rows` are their positions among all rows."""

    rows: NDArray[np.intp]
    mode: NDArray[np.uint64]
    """OffCpuState of OFF_CPU, WaitMode of DRIVER, 0 of CPU_SAMPLE."""
    subject: NDArray[np.uint64]
    """DRIVER: DeviceDriver << 32 | ioctl command; else 0."""
    count: NDArray[np.int64]
    """1 for a CPU_SAMPLE, else 0."""
    duration_ns: NDArray[np.int64]
    """0 for a CPU_SAMPLE."""


def find_thread_times(rows: CallArray) -> ThreadTimes | None:
    """Samples, off-CPU times and device calls among `rows` (dtype `wire.CALL`); None where there are none.

    Times that end before they begin are 0: they are counted as inverted with the calls (`find_waits`).
    """
    kinds = rows["kind"]
    (positions,) = np.nonzero((kinds >= Kind.CPU_SAMPLE) & (kinds <= Kind.DRIVER))
    if not len(positions):
        return None
    chosen = rows[positions]
    kinds = chosen["kind"]
    is_driver = kinds == Kind.DRIVER
    has_end = ((chosen["flags"] & CallFlag.RETURNED) != 0) & (kinds != Kind.CPU_SAMPLE)
    duration_ns = chosen["end_ns"].astype(np.int64) - chosen["start_ns"].astype(np.int64)
    waited = np.where(chosen["voluntary_switches"] > 0, WaitMode.BLOCKED, WaitMode.SPIN)
    mode = np.where(is_driver, waited, np.where(kinds == Kind.OFF_CPU, chosen["bytes"] & 0xFF, 0))
    command = chosen["object"] & np.uint64(_COMMAND_MASK)
    driver = chosen["grid"][:, 0].astype(np.uint64) << _DRIVER_SHIFT
    return ThreadTimes(
        rows=positions,
        mode=mode.astype(np.uint64),
        subject=np.where(is_driver, driver | command, 0).astype(np.uint64),
        count=(kinds == Kind.CPU_SAMPLE).astype(np.int64),
        duration_ns=np.where(has_end, np.maximum(duration_ns, 0), 0),
    )
