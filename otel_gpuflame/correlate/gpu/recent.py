"""Calls of the recent past: the first of those whose executions are delivered come before that is known."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray

MAX_ROWS: Final = 1 << 16
"""9 MiB: 65 ms of 1,000,000 calls/s, and a round of the live source has 50 ms."""


class RecentCalls:
    """The last `MAX_ROWS` calls, whatever batches they came in."""

    def __init__(self) -> None:
        self._batches: deque[CallArray] = deque()
        self._count = 0

    def add(self, rows: CallArray) -> None:
        """`rows` are kept, not copied."""
        self._batches.append(rows)
        self._count += len(rows)
        while self._count - len(self._batches[0]) >= MAX_ROWS:
            self._count -= len(self._batches.popleft())

    def rows(self) -> CallArray:
        """All of them, in their order."""
        return concatenate(self._batches, wire.CALL)[-MAX_ROWS:]

    def of(self, process: ProcessKey) -> CallArray:
        """Those of one process, in their order."""
        rows = self.rows()
        is_its = (rows["tgid"] == process.tgid) & (rows["process_start_ns"] == process.start_ns)
        return rows.take(np.flatnonzero(is_its))
