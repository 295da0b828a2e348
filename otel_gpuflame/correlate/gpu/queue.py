"""How long each execution waited after it could have begun, and what for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.attribute import asked_ns, attributions, part, what_ran
from otel_gpuflame.correlate.gpu.history import MAX_AGE_NS
from otel_gpuflame.correlate.gpu.keys import Index, TimeKeys, Times, codes_of
from otel_gpuflame.correlate.gpu.marks import Marks
from otel_gpuflame.correlate.gpu.timeline import Busy, covered_until
from otel_gpuflame.correlate.gpu.work import Work
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure, NoLaunch
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.wire import Kind

LAUNCH_TAKES_NS: Final = np.int64(10_000)
"""From a launch's entry to its start on an idle H200 4 to 5 µs pass: a full device only explains what is well above."""
_LAUNCH: Final = ("launch_start_ns", "tid", "tgid", "process_start_ns")


@dataclass(frozen=True, slots=True)
class Queued:
    """Rows of `ATTRIBUTION`: Σ over the rows of one execution is its time in the queue."""

    rows: AttributionArray
    without_launch: int
    """Executions whose time in the queue is not known, as their launch is not."""


def explain_queue(
    work: Work, busy: Busy, marks: Marks, chosen: NDArray[np.bool_] | None = None
) -> Queued:
    """`gpu_queue` of all executions, or of those `chosen` of `work.rows`.

    It is the time from the later of the launch's entry and the end of the stream's previous work to the start. Until
    the work had ended that the stream was told to wait for, by a recorded event, it is [waits for event]; the rest is
    [device full] where others kept the device busy all along, else [launch latency]. Of what one launch asked for only
    the first queues: the first node of a graph.
    """
    queues = _queues(work)
    if chosen is not None:
        queues &= chosen[work.row]
    place = np.flatnonzero(queues)
    launched = work.rows["launch_start_ns"][work.row[place]]
    since = np.maximum(launched, _previous_end(work, place))
    start = work.start_ns[place]
    waited = np.flatnonzero(start > since)
    place, since, start = place[waited], since[waited], start[waited]
    event = np.clip(_event_end(work, marks, place), since, start)
    row = work.row[place]
    covered = covered_until(busy, work.rows["device"][row], event)
    rest = (start - event).astype(np.int64)
    full = (covered >= start) & (rest >= LAUNCH_TAKES_NS)
    leaf = np.where(full, Leaf.DEVICE_FULL, Leaf.LAUNCH_LATENCY)
    by_event = np.flatnonzero(event > since)
    by_rest = np.flatnonzero(rest)
    row = np.concatenate([row[by_event], row[by_rest]])
    queued = part(
        work.rows,
        row,
        value_ns=np.concatenate([(event - since)[by_event].astype(np.int64), rest[by_rest]]),
        leaf=np.append(np.full(len(by_event), Leaf.WAITS_FOR_EVENT), leaf[by_rest]),
        measure=Measure.GPU_QUEUE,
        # Windows close by when executions end: what is told at the start of a long one would be late.
        time_ns=work.rows["end_ns"][row],
        sampled_ns=asked_ns(work.rows, row),
        **what_ran(work.rows, row),
    )
    without_launch = work.rows["no_launch"] != NoLaunch.NONE
    without = int((without_launch if chosen is None else without_launch & chosen).sum())
    return Queued(attributions([queued]), without)


def follows_unseen(work: Work, begins_ns: Mapping[ProcessKey, int]) -> NDArray[np.bool_]:
    """(n,) over `work.rows`: whether the stream may have been busy with something that nobody has seen.

    `begins_ns`: since when processes are captured that had used their devices before. The first execution of a stream
    since then may have waited for work from before, and nobody knows until when.
    """
    begin_of_lane = np.zeros(len(work.lanes), np.uint64)
    for place, (tgid, start_ns) in enumerate(work.lanes[["tgid", "process_start_ns"]].tolist()):
        begin_of_lane[place] = begins_ns.get(ProcessKey(tgid, start_ns), 0)
    begin = begin_of_lane[work.lane]
    asked = asked_ns(work.rows, work.row)
    before = np.maximum(np.arange(len(asked)) - 1, 0)
    has_before = (before < np.arange(len(asked))) & (work.lane[before] == work.lane)
    is_unseen = ~has_before | (asked[before] < begin)
    # Later, a stream without work before has had none for as long as anything is remembered.
    is_unseen &= (begin > 0) & (asked < begin + np.uint64(MAX_AGE_NS))
    result = np.zeros(len(asked), np.bool_)
    result[work.row] = is_unseen
    return result


def _queues(work: Work) -> NDArray[np.bool_]:
    """Whether each is the first that its launch had to do."""
    rows = work.rows
    queues: NDArray[np.bool_] = (rows["no_launch"] == NoLaunch.NONE)[work.row]
    launched = rows["launch_start_ns"][work.row]
    # What one call asked for follows one another, except where branches of graphs share a stream.
    again = np.flatnonzero((work.lane[1:] == work.lane[:-1]) & (launched[1:] == launched[:-1])) + 1
    mine, before = work.row[again], work.row[again - 1]
    same = np.ones(len(again), np.bool_)
    for name in _LAUNCH:
        same &= rows[name][mine] == rows[name][before]
    queues[again[same]] = False
    nodes = np.flatnonzero(queues & (rows["launch_kind"] == Kind.GRAPH_LAUNCH)[work.row])
    if len(nodes):
        launch, _ = codes_of(*(rows[name][work.row[nodes]] for name in _LAUNCH))
        _, first = np.unique(launch, return_index=True)
        queues[nodes] = False
        queues[nodes[first]] = True
    return queues


def _previous_end(work: Work, place: Index) -> Times:
    """Until when each one's stream was busy before; 0: nothing is known to have come before."""
    before = np.maximum(place - 1, 0)
    has = (place > 0) & (work.lane[before] == work.lane[place])
    return np.where(has, work.reach_ns[before], np.uint64(0))


def _event_end(work: Work, marks: Marks, place: Index) -> Times:
    """When the last of the work ended for which each one's stream was told to wait since its previous work; else 0."""
    ends = np.zeros(len(place), np.uint64)
    if not len(marks.waiting):
        return ends
    keys = TimeKeys(len(work.lanes), marks.time_ns)
    packed = keys.pack(marks.waiting, marks.time_ns)
    order = np.argsort(packed, kind="stable")
    last = work.submitted(marks.lane[order], marks.until_ns[order]) - 1
    has_work = last >= work.first[marks.lane[order]]
    end = np.where(has_work, work.reach_ns[last], np.uint64(0))
    lane, launched = work.lane[place], work.rows["launch_start_ns"][work.row[place]]
    before = np.maximum(place - 1, 0)
    has_before = (place > 0) & (work.lane[before] == lane)
    previous = np.where(has_before, work.entry_ns[before], np.uint64(0))
    first = keys.find(packed[order], lane, previous, "left")
    past = keys.find(packed[order], lane, launched, "right")
    some = past > first
    bounds = np.column_stack([first[some], past[some]]).ravel()
    # reduceat wants indexes inside the array; a 0 at the end does no harm to a maximum.
    ends[some] = np.maximum.reduceat(np.append(end, np.uint64(0)), bounds)[::2]
    return ends
