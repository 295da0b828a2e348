"""What each wait waits for: which streams, and on each the work that was asked for until when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.dependencies import Pairs, chain, close, take
from otel_gpuflame.correlate.gpu.keys import (
    Codes,
    Index,
    Times,
    expand,
    shared_codes,
    slices_of,
    stable_order,
)
from otel_gpuflame.correlate.gpu.legacy import Defaults
from otel_gpuflame.correlate.gpu.marks import Marks, event_marks
from otel_gpuflame.correlate.gpu.resolve import Contexts, contexts_of, streams_of
from otel_gpuflame.correlate.gpu.streams import CONTEXT_OF_THREAD, StreamTable
from otel_gpuflame.correlate.gpu.work import Work, find_lanes
from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

REFUTED_FROM_NS: Final = np.uint64(20_000)
"""Work that ended later than this after a wait was not waited for: far beyond what both clocks differ by."""


class Target(IntEnum):
    """What a call waits for by its name."""

    STREAM = 0
    CONTEXT = 1
    EVENT = 2
    DEVICE = 3
    COPY = 4
    """Its own copy, and so all that comes before it on that stream."""


_BY_KIND: Final = {Kind.COPY: Target.COPY, Kind.FREE: Target.DEVICE}
_BY_NAME: Final = {
    "cuCtxSynchronize": Target.CONTEXT,
    "cuStreamSynchronize": Target.STREAM,
    "cuEventSynchronize": Target.EVENT,
    "clFinish": Target.STREAM,
    "clWaitForEvents": Target.EVENT,
}


def _target_table() -> NDArray[np.uint8]:
    table = np.zeros(max(api.id for api in apis.ALL) + 1, np.uint8)
    for api in apis.ALL:
        table[api.id] = _BY_KIND.get(api.kind, Target.STREAM)
    for name, target in _BY_NAME.items():
        table[apis.BY_NAME[name].id] = target
    return table


_BY_API: Final = _target_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeCounts:
    """Waits by what made their scope less than certain."""

    unknown_stream: int
    """Nothing is known of the stream: if anything, they waited for streams that no known handle means."""
    unknown_event: int
    """The record of the event was not seen: whatever of the context had ended by the end of the wait."""
    unknown_context: int
    """The thread launched nothing, and its process has several contexts."""
    refuted: int
    """Streams left out because their work went on after the wait."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """Pairs of a wait and a lane, and until when work on it was asked for that the wait waits for.

    Where all of it had ended before the wait there is no pair.
    """

    pairs: Pairs
    counts: ScopeCounts


def find_scopes(
    waits: CallArray, work: Work, table: StreamTable, defaults: Defaults, marks: Marks
) -> Scopes:
    """What each of `waits` (calls that returned) waits for. `marks`: see `find_marks`."""
    target = _BY_API[np.where(waits["api"] < len(_BY_API), waits["api"], 0)]
    lanes, found = _named_lanes(waits, target, work, table)
    until = waits["start_ns"].copy()
    events = np.flatnonzero(target == Target.EVENT)
    record = event_marks(marks, waits[events])
    lanes[events] = np.where(record.found, record.lane, -1)
    until[events] = np.where(record.found, record.time_ns, until[events])
    lost_event = np.zeros(len(waits), np.bool_)
    lost_event[events] = ~record.found
    wide = (target == Target.CONTEXT) | (target == Target.DEVICE) | lost_event
    is_orphan = _orphans(work, table)
    lost = lost_event | (~wide & ~found & (lanes < 0) & (target != Target.EVENT))
    single = np.flatnonzero(~wide & (lanes >= 0))
    alone = Pairs(single, lanes[single], until[single], np.ones(len(single), np.bool_))
    contexts = contexts_of(table, waits)
    whole = _whole_pairs(waits, wide | lost, target == Target.DEVICE, work, contexts)
    whole = whole._replace(is_sure=whole.is_sure & ~lost[whole.wait])
    # A stream that nothing is known of is one that no known handle means.
    may_be = wide[whole.wait] | is_orphan[whole.lane]
    pairs = chain(alone, take(whole, may_be))
    closed = close(pairs, waits["start_ns"], work, defaults, marks)
    settled, refuted = _settle(closed, waits, work, lost)
    counts = ScopeCounts(
        unknown_stream=int((lost & ~lost_event).sum()),
        unknown_event=int(lost_event.sum()),
        unknown_context=int((wide & ~contexts.found).sum()),
        refuted=refuted,
    )
    return Scopes(settled, counts)


def _named_lanes(
    waits: CallArray, target: NDArray[np.uint8], work: Work, table: StreamTable
) -> tuple[Codes, NDArray[np.bool_]]:
    """(n,) the lane of each call's own copy, else of the stream that it names, and whether that stream is known.

    The lane is -1 where the stream did nothing.
    """
    streams = streams_of(table, waits)
    lanes = find_lanes(work, waits, streams.context_id, streams.stream_id)
    lanes = np.where(streams.found, lanes, -1)
    copies = np.flatnonzero(target == Target.COPY)
    done = np.flatnonzero(work.rows["launch_kind"] == Kind.COPY)
    mine, asked, _ = shared_codes(
        [work.rows[name][done] for name in ("process_start_ns", "tgid", "tid", "launch_start_ns")],
        [waits[name][copies] for name in ("process_start_ns", "tgid", "tid", "start_ns")],
    )
    row = np.full(max(int(mine.max(initial=-1)), int(asked.max(initial=-1))) + 1, -1, np.intp)
    row[mine] = done
    own = row[asked]
    has = own >= 0
    lanes[copies[has]] = work.lane_of_row[own[has]]
    return lanes, streams.found


def _orphans(work: Work, table: StreamTable) -> NDArray[np.bool_]:
    """(lanes,) whether no known handle means the lane's stream."""
    named = table.meanings.take(np.flatnonzero(table.meanings["handle"] != CONTEXT_OF_THREAD))
    names = ("process_start_ns", "tgid", "context_id", "stream_id")
    mine, theirs, count = shared_codes(
        [work.lanes[name] for name in names], [named[name] for name in names]
    )
    is_named = np.zeros(count, np.bool_)
    is_named[theirs] = True
    return ~is_named[mine]


def _whole_pairs(
    waits: CallArray,
    wide: NDArray[np.bool_],
    of_device: NDArray[np.bool_],
    work: Work,
    contexts: Contexts,
) -> Pairs:
    """Pairs of waits that wait for all of a context, of a device, or, where it is not known which, of a process."""
    parts = []
    for chosen, keys in (
        (wide & contexts.found & ~of_device, {"context_id": contexts.context_id}),
        (wide & contexts.found & of_device, {"device": contexts.device}),
        (wide & ~contexts.found, {}),
    ):
        rows = np.flatnonzero(chosen)
        names = ("process_start_ns", "tgid")
        mine, asked, count = shared_codes(
            [work.lanes[name] for name in (*names, *keys)],
            [*(waits[name][rows] for name in names), *(key[rows] for key in keys.values())],
        )
        order = stable_order(mine)
        first = slices_of(mine[order], count)
        pairs = expand(first[asked], first[asked + 1])
        wait = rows[pairs.owner]
        sure = np.full(len(wait), bool(keys))
        parts.append(Pairs(wait, order[pairs.item].astype(np.int64), waits["start_ns"][wait], sure))
    return chain(*parts)


def _settle(
    pairs: Pairs, waits: CallArray, work: Work, lost: NDArray[np.bool_]
) -> tuple[Pairs, int]:
    """`pairs` without those that cannot be: what was waited for has ended when the wait ends, and not before."""
    latest = waits["end_ns"][pairs.wait] + REFUTED_FROM_NS
    ended = work.keys.find(work.by_reach, pairs.lane, latest, "right") - 1
    has_ended = ended >= work.first[pairs.lane]
    pairs = pairs._replace(until_ns=_until_known(pairs, waits, work, ended))
    last = work.submitted(pairs.lane, pairs.until_ns) - 1
    has = last >= work.first[pairs.lane]
    has &= work.reach_ns[last] > waits["start_ns"][pairs.wait]
    went_on = has & ~pairs.is_sure & (work.reach_ns[last] > latest)
    # An event may have been recorded before the work that went on.
    cut = went_on & lost[pairs.wait] & has_ended
    until = np.where(cut, work.entry_ns[ended], pairs.until_ns)
    refuted = went_on & ~cut
    settled = take(pairs._replace(until_ns=until), has & ~refuted)
    return settled, int((refuted & ~lost[pairs.wait]).sum())


def _until_known(pairs: Pairs, waits: CallArray, work: Work, ended: Index) -> Times:
    """Until when work counts of which it is not known when it was asked for.

    What was to be done by the time of the wait may go on with executions whose launches are not known: with those
    that had ended when the wait did, up to the first whose launch is known. `ended`: the last that had.
    """
    count = len(work.row)
    has_launch = (work.rows["no_launch"] == NoLaunch.NONE)[work.row]
    known = np.where(has_launch, np.arange(count), count)
    next_known = np.append(np.minimum.accumulate(known[::-1])[::-1], count)
    following = work.submitted(pairs.lane, pairs.until_ns)
    stop = next_known[following]
    last = np.minimum(stop - 1, ended)
    goes_on = (last >= following) & (pairs.until_ns >= waits["start_ns"][pairs.wait])
    # Not where it would drag in the one that was asked for later.
    entry = np.append(work.entry_ns, np.uint64(0))
    goes_on &= entry[stop] != entry[last]
    return np.where(goes_on, entry[last], pairs.until_ns)
