"""Waits that may have been for work from before capture began, which nobody has seen."""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.backlog import Numbers
from otel_gpuflame.correlate.gpu.keys import codes_of
from otel_gpuflame.correlate.gpu.match import Mask, Positions, Times
from otel_gpuflame.correlate.gpu.processes import FOREVER, Processes
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag

_OF_CALL: Final = ("tid", "api", "stream", "object")
"""What a wait is for, as far as its arguments say; the context is the thread's."""
_MAX_KNOWN: Final = 1 << 16


class FirstWaits:
    """When a wait for something has ended, what was launched there before it has ended too.

    So the first of a process for each stream, event or context may have been for work that was not captured; of those
    that begin after its end it is known what they waited for.
    """

    def __init__(self) -> None:
        self._over_ns: dict[tuple[int, ...], int] = {}
        """By process number and `_OF_CALL`, when the first wait ended."""

    def forget(self, number: int) -> None:
        """The process of that number begins anew, or has left."""
        self._over_ns = {key: ns for key, ns in self._over_ns.items() if key[0] != number}

    def are_past(self, waits: CallArray, numbers: Numbers, begin_ns: Times) -> Mask:
        """(n,) which waits began after the first one for the same. `begin_ns`: when capture of each process began."""
        if not len(waits):
            return np.zeros(0, np.bool_)
        columns = [numbers, *(waits[name] for name in _OF_CALL)]
        codes, some = codes_of(*columns)
        starts_ns, ends_ns = (waits[name].astype(np.int64) for name in ("start_ns", "end_ns"))
        over_ns = np.full(len(some), FOREVER)
        is_inside = np.flatnonzero(starts_ns >= begin_ns)
        np.minimum.at(over_ns, codes[is_inside], ends_ns[is_inside])
        distinct = zip(*(column[some].tolist() for column in columns), strict=True)
        for place, key in enumerate(distinct):
            known_ns = self._over_ns.get(key, FOREVER)
            over_ns[place] = min(known_ns, int(over_ns[place]))
            if over_ns[place] < known_ns and len(self._over_ns) < _MAX_KNOWN:
                self._over_ns[key] = int(over_ns[place])
        past: Mask = starts_ns >= over_ns[codes]
        return past


def waits_inside(
    rows: CallArray, numbers: Numbers, processes: Processes, first: FirstWaits
) -> Positions:
    """Waits that lie whole within a time from which executions are delivered, and for what was launched in it.

    `numbers` (n,): of each row's process, -1 where it is not tracked.
    """
    waits = np.flatnonzero((numbers >= 0) & ((rows["flags"] & CallFlag.RETURNED) != 0))
    if not len(waits):
        return waits
    waits = waits[find_waits(rows.take(waits)).duration_ns > 0]
    begin_ns, end_ns = processes.intervals()
    number = numbers[waits]
    starts_ns, ends_ns = (rows[name][waits].astype(np.int64) for name in ("start_ns", "end_ns"))
    is_inside = (starts_ns >= begin_ns[number]) & (ends_ns <= end_ns[number])
    is_partial = np.flatnonzero(processes.are_partial()[number])
    if len(is_partial):
        some, begins_ns = waits[is_partial], begin_ns[number[is_partial]]
        is_inside[is_partial] &= first.are_past(rows.take(some), numbers[some], begins_ns)
    return waits[is_inside]
