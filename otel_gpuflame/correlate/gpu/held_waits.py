"""Waits that are held back until it is known what ran meanwhile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.backlog import Backlog, Numbers, numbers_of
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import CallArray


class HeldWaits:
    """By the time at which they ended."""

    def __init__(self) -> None:
        self._backlog = Backlog(wire.CALL)
        self._given_up_ns = 0
        """Until when executions were no longer waited for."""

    def add(self, rows: CallArray, numbers: Numbers) -> None:
        """`numbers`: of their processes."""
        self._backlog.add(rows, numbers, rows["end_ns"].astype(np.int64))

    def give_up(self, until_ns: int) -> None:
        """Executions until then are no longer waited for."""
        self._given_up_ns = until_ns

    def due(self, until_ns: int, complete_ns: NDArray[np.int64]) -> tuple[CallArray, CallArray]:
        """Waits that ended by then, and of these those that cannot be explained, since executions were given up.

        `complete_ns`: by number of the process, until when its executions are here. What those others waited for is not
        known yet: they keep their time, without a reason.
        """
        parts = self._backlog.take(until_ns)
        waits = concatenate([part.rows for part in parts], wire.CALL)
        if not len(waits):
            return waits, waits
        is_told = waits["start_ns"].astype(np.int64) < complete_ns[numbers_of(parts)]
        is_told |= waits["end_ns"].astype(np.int64) > self._given_up_ns
        if is_told.all():
            return waits, waits[:0]
        return waits.take(np.flatnonzero(is_told)), waits.take(np.flatnonzero(~is_told))

    def last_ns(self, number: int | None = None) -> int:
        """When the last one ended (of a process); 0 where there is none."""
        return self._backlog.last_ns(number)

    def overfull_until_ns(self, limit: int) -> int | None:
        """By when half of them had ended, if there are more than `limit`."""
        return self._backlog.middle_ns() if self._backlog.count > limit else None
