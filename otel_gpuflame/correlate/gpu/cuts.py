"""Moments of one process at which probes and CUPTI are known to speak of the same launches."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.correlate.gpu.segments import TOGETHER_NS
from otel_gpuflame.correlate.gpu.undecided import SYNC_DETAIL, Undecided, parts
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import EXECUTION
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag

_MAX_CUTS: Final = 64
"""In one step, evenly spaced: programs may synchronise 10,000 times a second."""
_CONTEXT_NS: Final = 10_000_000
"""Creating a context takes longer: 110 to 160 ms on an H200."""


class Cut(NamedTuple):
    """A synchronisation that both sides have seen: launches before `time_ns` have ids below `id`."""

    time_ns: int
    id: int


def begins(process: Undecided, until_ns: int) -> bool:
    """Whether the first launch that we know is the program's first one."""
    if not process.may_begin or not process.calls:
        return False
    first_ns = min(int(rows["start_ns"].min()) for rows in process.calls)
    if until_ns <= first_ns:
        # What ran before may not be here yet.
        return False
    ran_ns = min((int(rows["start_ns"].min()) for rows in process.executions), default=first_ns)
    process.is_anchored = process.begin_ns + _CONTEXT_NS <= first_ns <= ran_ns
    process.may_begin = process.is_anchored
    return process.is_anchored


def cuts_of(process: Undecided, until_ns: int) -> list[Cut]:
    """Synchronisations that lie in exactly one wait of their kind, in order. Each is looked at once."""
    seen = concatenate(process.synchronisations, EXECUTION)
    is_due = seen["end_ns"] <= until_ns
    due = seen.take(np.flatnonzero(is_due))
    process.synchronisations = parts(seen, ~is_due)
    waits = concatenate(process.waits, wire.CALL)
    process.waits = parts(waits, waits["end_ns"].astype(np.int64) > until_ns)
    waits = waits.take(np.flatnonzero((waits["flags"] & CallFlag.RETURNED) != 0))
    ids = process.counted_ids(due)
    order = np.argsort(ids)
    if len(order) > _MAX_CUTS:
        order = order[np.linspace(0, len(order) - 1, _MAX_CUTS).astype(np.intp)]
    details = np.array([SYNC_DETAIL[api] for api in waits["api"].tolist()], np.uint16)
    launches = concatenate(process.calls, wire.CALL)
    cuts: list[Cut] = []
    for place in order.tolist():
        row = due[place]
        inside = (waits["start_ns"] <= row["start_ns"]) & (row["end_ns"] <= waits["end_ns"])
        inside &= details == row["detail"]
        if np.count_nonzero(inside) != 1:
            continue
        wait = waits[int(np.argmax(inside))]
        cut = Cut(int(wait["start_ns"]), int(ids[place]))
        if _is_alone(wait, launches) and (not cuts or cut.time_ns > cuts[-1].time_ns):
            cuts.append(cut)
    return cuts


def drop_before(process: Undecided, cut: Cut) -> int:
    """Begin at the cut: what was launched before it is left out. Returns of how many launches there were executions."""
    calls = concatenate(process.calls, wire.CALL)
    process.calls = parts(calls, calls["start_ns"].astype(np.int64) >= cut.time_ns)
    works = concatenate(process.executions, EXECUTION)
    is_after = process.counted_ids(works) > cut.id
    process.executions = parts(works, is_after)
    return len(np.unique(works["correlation_id"][~is_after]))


def _is_alone(wait: Any, launches: CallArray) -> bool:
    """Whether no other thread launched so close to the begin of the wait that ids may have another order."""
    distance = np.abs(launches["start_ns"].astype(np.int64) - int(wait["start_ns"]))
    others = launches["thread_pointer"] != wait["thread_pointer"]
    return not bool((others & (distance < TOGETHER_NS)).any())
