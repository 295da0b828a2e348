"""What joined executions say: the parts of this package in their order, and what they must remember in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu import streams
from otel_gpuflame.correlate.gpu.backpressure import HeldBack, explain_backpressure
from otel_gpuflame.correlate.gpu.gpu_time import explain_time
from otel_gpuflame.correlate.gpu.graph_nodes import GraphNodes
from otel_gpuflame.correlate.gpu.history import History
from otel_gpuflame.correlate.gpu.idleness import Begins, Idleness
from otel_gpuflame.correlate.gpu.join import Settled
from otel_gpuflame.correlate.gpu.legacy import find_defaults, remember
from otel_gpuflame.correlate.gpu.marks import find_marks, keep_marks
from otel_gpuflame.correlate.gpu.pressure import Pressure
from otel_gpuflame.correlate.gpu.queue import explain_queue, follows_unseen
from otel_gpuflame.correlate.gpu.rows import JoinedArray, concatenate
from otel_gpuflame.correlate.gpu.scopes import ScopeCounts, find_scopes
from otel_gpuflame.correlate.gpu.seen import Seen
from otel_gpuflame.correlate.gpu.timeline import busy_intervals
from otel_gpuflame.correlate.gpu.waits import explain_waits
from otel_gpuflame.correlate.gpu.work import arrange
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import AttributionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

_MARKS: Final = (Kind.EVENT_RECORD, Kind.STREAM_WAIT)
_MAX_MARKS: Final = 1 << 17
"""19 MB. Programs make each event again and again: only the last record of each matters once it is old."""
_MARKS_AGE_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the time of executions means, and that of `explained` waits; `others` are waits of unknown meaning."""

    rows: list[AttributionArray]
    explained: CallArray
    others: CallArray


class Explainer:
    """Knows the streams of all processes, and which events stand for what."""

    def __init__(
        self,
        history: History,
        uncertain: Counter[str],
        nodes: GraphNodes | None = None,
        seen: Seen | None = None,
    ) -> None:
        self._history = history
        self._seen = seen or Seen()
        self._nodes = nodes or GraphNodes()
        self._uncertain = uncertain
        self.idleness = Idleness()
        self._table = streams.EMPTY
        self._marks = np.empty(0, wire.CALL)
        self._pressure = Pressure()
        self._new_marks: list[CallArray] = []

    def add_calls(self, rows: CallArray) -> None:
        """What threads of captured processes did, in any order."""
        self.idleness.add_calls(rows)
        # Begins and ends of captures are no events.
        marks = np.flatnonzero(np.isin(rows["kind"], _MARKS) & (rows["object"] != 0))
        if len(marks):
            self._new_marks.append(rows.take(marks))

    def explain(self, settled: Settled, waits: CallArray, begins: Begins) -> Explanation:
        """What newly settled executions mean, and `waits` that ended by then."""
        executions = settled.executions
        self._table = streams.learn(self._table, executions)
        self._table = streams.learn_from_waits(self._table, settled.others, waits)
        parts = [
            self._nodes.refine(explain_time(rows), rows) for rows in (executions, settled.late)
        ]
        idle = self.idleness.tell(executions, begins, settled.until_ns, settled.open_ns)
        parts += [_not_before(rows, settled.since_ns) for rows in idle]
        is_known = waits["start_ns"] >= self._history.begin_ns
        explained = waits.take(np.flatnonzero(is_known))
        others = waits.take(np.flatnonzero(~is_known))
        held_back, launches = self._pressure.due(settled)
        since_ns = _since_ns(executions, explained, held_back)
        if since_ns is None:
            return Explanation(parts, explained, others)
        work = arrange(self._history.since(since_ns), self._table)
        defaults = find_defaults(work, self._table)
        self._table = remember(self._table, work, defaults)
        marks = find_marks(self._marks_until(settled.until_ns), work, self._table)
        if len(explained):
            scopes = find_scopes(explained, work, self._table, defaults, marks)
            sampled = self._seen.sampled_waits(explained)
            parts.append(explain_waits(explained, work, scopes, sampled))
            self._count_scopes(scopes.counts)
        if len(held_back):
            pressure = explain_backpressure(held_back, launches, work, self._table)
            parts.append(_not_before(pressure.rows, settled.since_ns))
            self._count_pressure(pressure)
        if self._table.forgotten:
            self._uncertain["streams forgotten"] = self._table.forgotten
        if len(executions):
            is_new = work.rows["end_ns"] > settled.since_ns
            if begins.partial_ns:
                is_new &= ~follows_unseen(work, begins.partial_ns)
            parts.append(explain_queue(work, busy_intervals(work.rows), marks, is_new).rows)
        return Explanation(parts, explained, others)

    def _count_scopes(self, scopes: ScopeCounts) -> None:
        for reason, count in (
            ("waits for streams of which nothing is known", scopes.unknown_stream),
            ("waits for events that were recorded out of sight", scopes.unknown_event),
            ("waits of threads in one of several contexts", scopes.unknown_context),
            ("streams that a wait seemed to wait for and cannot have", scopes.refuted),
        ):
            if count:
                self._uncertain[reason] += count

    def _count_pressure(self, pressure: HeldBack) -> None:
        for reason, count in (
            ("times of a full queue inside launches of several threads", pressure.ambiguous),
            ("times of a full queue inside no launch", pressure.without_launch),
        ):
            if count:
                self._uncertain[reason] += count

    def leave(self, process: ProcessKey, end_ns: int, told_ns: int) -> list[AttributionArray]:
        """A process is no longer captured, or runs another program: what is left to say of it."""
        idle = self.idleness.leave(process, end_ns)
        self._forget(process)
        return [_not_before(rows, told_ns) for rows in idle]

    def _forget(self, process: ProcessKey) -> None:
        self._nodes.forget(process)
        self._pressure.forget(process)
        self._table = streams.forget(self._table, process.tgid, process.start_ns)
        marks = concatenate([self._marks, *self._new_marks], wire.CALL)
        is_its = (marks["tgid"] == process.tgid) & (marks["process_start_ns"] == process.start_ns)
        self._marks, self._new_marks = marks.take(np.flatnonzero(~is_its)), []

    def _marks_until(self, until_ns: int) -> CallArray:
        """Event records and stream waits that were made by then; those that nothing refers to any more go."""
        marks = concatenate([self._marks, *self._new_marks], wire.CALL)
        self._new_marks = []
        if len(marks):
            marks = keep_marks(marks, max(until_ns - _MARKS_AGE_NS, 0))
            if len(marks) > _MAX_MARKS:
                newest = np.argsort(marks["start_ns"], kind="stable")[-_MAX_MARKS:]
                marks = marks.take(np.sort(newest))
        self._marks = marks
        return marks.take(np.flatnonzero(marks["start_ns"] <= until_ns))


def _since_ns(executions: JoinedArray, *others: np.ndarray) -> int | None:
    """From when on it matters what the devices did; None where nothing is to be said."""
    times = [rows["start_ns"] for rows in others if len(rows)]
    if len(executions):
        launched = executions["launch_start_ns"]
        times.append(np.where(launched > 0, launched, executions["start_ns"]))
    return min((int(each.min()) for each in times), default=None)


def _not_before(rows: AttributionArray, time_ns: int) -> AttributionArray:
    """A gap that was told late counts when it was told: windows of its time may have closed."""
    rows["time_ns"] = np.maximum(rows["time_ns"], np.uint64(time_ns))
    return rows
