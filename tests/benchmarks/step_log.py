"""When a program finished each of its steps: a file that it maps and fills, one number a step, without ever waiting.

Blocks of any length are cut out of it afterwards, so that the program need not know of them.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

CAPACITY: Final = 1 << 22
"""Steps of a file: half an hour at 2,300 a second. It is sparse until it is written."""
_BYTES: Final = 8


class StepWriter:
    """The program's side."""

    def __init__(self, path: Path) -> None:
        with path.open("wb+") as file:
            file.truncate(2 * CAPACITY * _BYTES)
            self._slots = memoryview(mmap.mmap(file.fileno(), 2 * CAPACITY * _BYTES)).cast("q")
        self._next = 0

    def measured(self, yardstick_ns: int) -> None:
        """How long a fixed piece of work took in this step, which no probe touches; several of a step add up."""
        self._slots[CAPACITY + self._next] += yardstick_ns

    def done(self) -> None:
        """A step is done. Raises IndexError when the file is full."""
        if self._next == CAPACITY:
            raise IndexError("the log of steps is full")
        self._slots[self._next] = time.monotonic_ns()
        self._next += 1


class Steps:
    """Times of steps in CLOCK_MONOTONIC nanoseconds, rising; and of each how long its yardstick took, 0: has none."""

    def __init__(
        self, times_ns: NDArray[np.int64], yardsticks_ns: NDArray[np.int64] | None = None
    ) -> None:
        self.times_ns = times_ns
        self.yardsticks_ns = np.zeros_like(times_ns) if yardsticks_ns is None else yardsticks_ns
        self._numbers = np.arange(len(times_ns), dtype=float)

    def between(self, start_ns: int, end_ns: int) -> float:
        """How many steps were made, the ones at the edges in part. Raises ValueError outside of what was logged."""
        if not len(self.times_ns) or start_ns < self.times_ns[0] or end_ns > self.times_ns[-1]:
            raise ValueError("the program made no steps then")
        first, last = np.interp((start_ns, end_ns), self.times_ns, self._numbers)
        return float(last - first)

    def rate(self, start_ns: int, end_ns: int) -> float:
        """Steps a nanosecond."""
        return self.between(start_ns, end_ns) / (end_ns - start_ns)

    def durations(self, start_ns: int, end_ns: int) -> NDArray[np.float64]:
        """Nanoseconds of each step that lies wholly in that time, without its yardstick."""
        first, last = np.searchsorted(self.times_ns, (start_ns, end_ns))
        lasted = np.diff(self.times_ns[first:last])
        return (lasted - self.yardsticks_ns[first + 1 : last]).astype(float)

    def yardsticks(self, start_ns: int, end_ns: int) -> NDArray[np.float64]:
        """Nanoseconds of those of the steps that ended in that time. Raises ValueError where one has none."""
        first, last = np.searchsorted(self.times_ns, (start_ns, end_ns))
        found = self.yardsticks_ns[first:last].astype(float)
        if not found.all() or not len(found):
            raise ValueError("the program measured nothing then")
        return found


def read_steps(path: Path) -> Steps:
    """What a program has logged so far."""
    slots = np.memmap(path, "<i8", "r")
    count = int(np.searchsorted(slots[:CAPACITY] == 0, True))
    yardsticks_ns = slots[CAPACITY : CAPACITY + count] if len(slots) > CAPACITY else None
    return Steps(
        np.array(slots[:count]), None if yardsticks_ns is None else np.array(yardsticks_ns)
    )
