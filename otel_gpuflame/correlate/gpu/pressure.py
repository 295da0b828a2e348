"""Records of launches that were held back, until it is known what ran meanwhile."""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.backpressure import is_full_queue
from otel_gpuflame.correlate.gpu.join import Settled
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray

_GIVE_UP_NS: Final = 2_000_000_000
"""A kernel that runs for longer does not keep records back."""
_MAX_ROWS: Final = 1 << 16


class Pressure:
    """Keeps such records, and the launches that they may belong to."""

    def __init__(self) -> None:
        self._records = np.empty(0, EXECUTION)
        self._launches = np.empty(0, wire.CALL)

    def due(self, settled: Settled) -> tuple[ExecutionArray, CallArray]:
        """Records of times of which all executions have been settled, and all launches they may lie inside."""
        full = np.flatnonzero(is_full_queue(settled.others))
        if not len(full) and not len(self._records):
            return self._records, self._launches
        records = concatenate([self._records, settled.others.take(full)], EXECUTION)
        launches = concatenate([self._launches, settled.long_launches], wire.CALL)
        open_ns = min(settled.open_ns.values(), default=FOREVER)
        ends_ns = records["end_ns"].astype(np.int64)
        is_due = (ends_ns <= open_ns) | (ends_ns <= settled.until_ns - _GIVE_UP_NS)
        is_due[:-_MAX_ROWS] = True
        self._records = records.take(np.flatnonzero(~is_due))
        first_ns = self._records["start_ns"].min(initial=FOREVER)
        self._launches = launches.take(np.flatnonzero(launches["end_ns"] >= first_ns))
        return records.take(np.flatnonzero(is_due)), launches

    def forget(self, process: ProcessKey) -> None:
        """It has ended, or runs another program."""
        self._records, self._launches = (
            rows.take(
                np.flatnonzero(
                    (rows["tgid"] != process.tgid) | (rows["process_start_ns"] != process.start_ns)
                )
            )
            for rows in (self._records, self._launches)
        )
