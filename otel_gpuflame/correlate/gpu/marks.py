"""Events: which work of which stream one stands for, and which streams were told to wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import Codes, Times, codes_of, last_before, shared_codes
from otel_gpuflame.correlate.gpu.resolve import streams_of
from otel_gpuflame.correlate.gpu.streams import StreamTable
from otel_gpuflame.correlate.gpu.work import Work, find_lanes
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

_EVENT: Final = ("process_start_ns", "tgid", "object")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Columns as long as the calls: what the event of each stood for at that time. `found` False: not known.

    All work on `lane` that was asked for by `time_ns`. `lane` is -1 where that stream did nothing.
    """

    found: NDArray[np.bool_]
    lane: Codes
    time_ns: Times


@dataclass(frozen=True, slots=True)
class Marks:
    """Event records, and as columns: at `time_ns` `waiting` was told to wait for what `lane` had to do `until_ns`."""

    records: CallArray
    record_lane: Codes
    waiting: Codes
    time_ns: Times
    lane: Codes
    until_ns: Times
    unknown_event: int
    """Stream waits whose event's record was not seen."""


def find_marks(calls: CallArray, work: Work, table: StreamTable) -> Marks:
    """From the event records and stream waits among `calls`, in any order."""
    records = calls.take(np.flatnonzero(calls["kind"] == Kind.EVENT_RECORD))
    waits = calls.take(np.flatnonzero(calls["kind"] == Kind.STREAM_WAIT))
    record_lane = _lanes(records, work, table)
    recorded = _last_records(records, record_lane, waits)
    waiting = _lanes(waits, work, table)
    matters = recorded.found & (recorded.lane >= 0) & (waiting >= 0) & (waiting != recorded.lane)
    return Marks(
        records=records,
        record_lane=record_lane,
        waiting=waiting[matters],
        time_ns=waits["start_ns"][matters],
        lane=recorded.lane[matters],
        until_ns=recorded.time_ns[matters],
        unknown_event=int((~recorded.found).sum()),
    )


def event_marks(marks: Marks, calls: CallArray) -> Recorded:
    """What the event of each call (its `object`) stood for when the call was made."""
    return _last_records(marks.records, marks.record_lane, calls)


def keep_marks(calls: CallArray, before_ns: int) -> CallArray:
    """`calls` (event records and stream waits) without what later ones before `before_ns` have replaced."""
    codes, _ = codes_of(*(calls[name] for name in (*_EVENT, "kind", "stream")))
    order = np.lexsort((calls["start_ns"], codes))
    is_old = calls["start_ns"][order] < np.uint64(before_ns)
    replaced = np.zeros(len(order), np.bool_)
    replaced[:-1] = (codes[order][1:] == codes[order][:-1]) & is_old[1:]
    return calls.take(np.sort(order[~replaced]))


def _lanes(calls: CallArray, work: Work, table: StreamTable) -> Codes:
    streams = streams_of(table, calls)
    lanes = find_lanes(work, calls, streams.context_id, streams.stream_id)
    return np.where(streams.found, lanes, -1)


def _last_records(records: CallArray, lanes: Codes, calls: CallArray) -> Recorded:
    mine, asked, count = shared_codes(
        [records[name] for name in _EVENT], [calls[name] for name in _EVENT]
    )
    times = records["start_ns"]
    before, _ = last_before((mine, times), (asked, calls["start_ns"]), count)
    found = before >= 0
    if not len(records):
        return Recorded(found, before.astype(np.int64), np.zeros(len(calls), np.uint64))
    return Recorded(found, np.where(found, lanes[before], -1), np.where(found, times[before], 0))
