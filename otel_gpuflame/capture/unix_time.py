"""What to add to CLOCK_MONOTONIC to have unix time."""

from __future__ import annotations

import time

_READINGS = 5


def unix_offset_ns() -> int:
    """Unix time less CLOCK_MONOTONIC now, in nanoseconds: until the clock is set, or the host sleeps.

    Of several readings that one in which least time passed: whoever loses the processor between two clocks finds too
    much between them.
    """
    readings = []
    for _ in range(_READINGS):
        before_ns, unix_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, unix_ns - before_ns))
    return min(readings)[1]
