"""What threads did besides calling the driver library: how long, and about what."""

from __future__ import annotations

import numpy as np

from otel_gpuflame.correlate.threads import find_thread_times
from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events.wire import CallFlag, DeviceDriver, Kind, OffCpuState
from tests.unit.profile.builders import call


def test_calls_of_the_driver_library_are_none() -> None:
    """Nothing is found where there are only calls, and nothing in an empty batch."""
    rows = np.concatenate([call("cuLaunchKernel"), call("cuStreamSynchronize", duration_ns=5)])
    assert find_thread_times(rows) is None
    assert find_thread_times(rows[:0]) is None


def test_each_kind_has_its_own_value() -> None:
    """Samples count 1, off-CPU times and device calls last; positions are those among all rows."""
    rows = np.concatenate(
        [
            call("cuLaunchKernel"),
            call(0, kind=Kind.CPU_SAMPLE),
            call(0, kind=Kind.OFF_CPU, duration_ns=7, bytes=OffCpuState.UNINTERRUPTIBLE),
            call("cuStreamSynchronize", duration_ns=5),
            call(300, duration_ns=9, object=0xC020462A, grid=[DeviceDriver.NVIDIA, 0, 0]),
            call(301, duration_ns=4, voluntary_switches=2, grid=[DeviceDriver.DRM, 0, 0]),
        ]
    )
    times = find_thread_times(rows)
    assert times is not None
    assert times.rows.tolist() == [1, 2, 4, 5]
    assert times.count.tolist() == [1, 0, 0, 0]
    assert times.duration_ns.tolist() == [0, 7, 9, 4]
    assert times.mode.tolist() == [0, OffCpuState.UNINTERRUPTIBLE, WaitMode.SPIN, WaitMode.BLOCKED]
    assert times.subject.tolist() == [0, 0, 2 << 32 | 0xC020462A, 4 << 32]


def test_times_that_make_no_sense_are_zero() -> None:
    """An end before the begin, a missing end, and a sample that claims to have lasted."""
    rows = np.concatenate(
        [
            call(0, kind=Kind.OFF_CPU, duration_ns=-3),
            call(300, end_ns=2**63),
            call(0, kind=Kind.CPU_SAMPLE, duration_ns=8),
        ]
    )
    assert rows["flags"][1] & CallFlag.RETURNED == 0
    times = find_thread_times(rows)
    assert times is not None
    assert times.duration_ns.tolist() == [0, 0, 0]
