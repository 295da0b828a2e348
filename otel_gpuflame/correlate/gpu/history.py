"""What the devices did lately: waits and queues look back on it."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, by_device, concatenate

MAX_ROWS: Final = 1 << 19
"""138 MB. At 50,000 kernels/s that is the last 10 s: the longest wait that is told apart whole."""
MAX_AGE_NS: Final = 60_000_000_000


class _Part(NamedTuple):
    rows: JoinedArray
    first_end_ns: int
    last_end_ns: int


class History:
    """Joined executions: those that ended in the last minute, but not many more than `max_rows`."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._parts: deque[_Part] = deque()
        self._count = 0
        self.begin_ns = 0
        """Nothing that ended after this has been left out."""

    def __len__(self) -> int:
        return self._count

    def add(self, rows: JoinedArray, ends_ns: NDArray[np.int64]) -> None:
        """Rows in the order in which they are handed on, with their ends; they are kept, not copied."""
        if not len(rows):
            return
        newest = _Part(rows, int(ends_ns.min()), int(ends_ns.max()))
        self._parts.append(newest)
        self._count += len(rows)
        while self._may_go(self._parts[0], newest.last_end_ns):
            gone = self._parts.popleft()
            self._count -= len(gone.rows)
            self.begin_ns = max(self.begin_ns, gone.last_end_ns)

    def clear(self) -> None:
        """Nothing will look back on these."""
        if self._parts:
            self.begin_ns = max(self.begin_ns, *(part.last_end_ns for part in self._parts))
        self._parts.clear()
        self._count = 0

    def since(self, time_ns: int) -> JoinedArray:
        """Executions that ended after `time_ns`, in the order in which they are handed on."""
        chosen = []
        for part in self._parts:
            if part.first_end_ns > time_ns:
                chosen.append(part.rows)
            elif part.last_end_ns > time_ns:
                places = np.flatnonzero(part.rows["end_ns"] > time_ns)
                chosen.append(part.rows.take(places))
        found = concatenate(chosen, JOINED)
        return by_device(found) if len(chosen) > 1 else found

    def _may_go(self, part: _Part, now_ns: int) -> bool:
        too_many = self._count - len(part.rows) >= self._max_rows
        return too_many or part.last_end_ns < now_ns - MAX_AGE_NS
