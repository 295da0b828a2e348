"""Calls that differ only in when they were made: one call, made so many times.

Most calls are launches that return at once, from few places. Everything after this then works on thousands of rows
where there were a million.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import runs
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

_FROM_ROWS: Final = 8_192
"""Fewer have hardly any repeats: folding would cost more than it saves."""
_LAST_CALL: Final = Kind.FREE
"""Kinds above this are no calls and mean something else by their fields."""
# No sample depends on these.
_IRRELEVANT: Final = ("start_ns", "tid", "thread_pointer", "stream", "grid", "block")


def _relevant_bits() -> NDArray[np.uint64]:
    """(words of a call,) ones where a call says what it was."""
    bits = np.full(wire.CALL.itemsize, 0xFF, np.uint8)
    call = bits.view(wire.CALL)
    for name in _IRRELEVANT:
        call[name] = 0
    return bits.view("<u8")


_RELEVANT: Final = _relevant_bits()


def fold_repeats(rows: CallArray) -> list[tuple[CallArray, NDArray[np.int64]]]:
    """`rows` (dtype `wire.CALL`) in parts, each with how often each of its rows was made.

    Calls with a duration come back as they are. Of the others one of each remains, in no particular order: time,
    thread, stream and dimensions are those of one of them.
    """
    if len(rows) < _FROM_ROWS:
        return [(rows, np.ones(len(rows), np.int64))]
    at_once = (rows["end_ns"] == 0) & (rows["kind"] <= _LAST_CALL)
    # numpy.take, since indexing with a mask copies records field by field.
    others = rows.take(np.flatnonzero(~at_once))
    return [_fold(rows.take(np.flatnonzero(at_once))), (others, np.ones(len(others), np.int64))]


def _fold(rows: CallArray) -> tuple[CallArray, NDArray[np.int64]]:
    if not len(rows):
        return rows, np.zeros(0, np.int64)
    order, starts = runs(rows.view("<u8").reshape(len(rows), -1) & _RELEVANT)
    return rows.take(order[starts]), np.diff(starts, append=len(rows))
