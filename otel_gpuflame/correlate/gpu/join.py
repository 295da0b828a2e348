"""Which launch each execution belongs to, for what arrives in any order, in bounded memory.

Nothing is decided when it arrives. All is kept until its time has come (`settle`), and then decided for good: by then
everything that could belong to it is there, in whatever order it came. Results therefore depend on times alone, not
on batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.backlog import Backlog, Numbers, due_of, numbers_of
from otel_gpuflame.correlate.gpu.backpressure import is_full_queue, long_launches
from otel_gpuflame.correlate.gpu.counts import JoinCounts
from otel_gpuflame.correlate.gpu.due import in_order
from otel_gpuflame.correlate.gpu.history import MAX_ROWS, History
from otel_gpuflame.correlate.gpu.launches import (
    IS_SUBMISSION,
    RECORDED,
    Calls,
    Launches,
    claim_calls,
    id_keys,
    joined,
    no_launches,
    recorded,
    take,
)
from otel_gpuflame.correlate.gpu.match import (
    Mask,
    contains,
    launches_of,
)
from otel_gpuflame.correlate.gpu.rows import JoinedArray, concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire_gpu import GpuKind

LATE_NS: Final = 2_000_000_000
"""So long launches without an execution are kept that should have had it: for executions that come late."""
_AT_ONCE: Final = 1 << 15
"""More do not fit into any cache, and take more memory than it gains time."""
_LONGEST_NS: Final = 1 << 42
"""73 minutes. A longer execution, or one that is so far ahead of everything else, has a wrong time."""
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows that may wait at a time: launches and their calls, executions, executions of the past."""

    launches: int = 1 << 20
    executions: int = 1 << 21
    history: int = MAX_ROWS


class Settled(NamedTuple):
    """What has been decided, in the order in which rows are handed on."""

    since_ns: int
    """Nothing that ended after it had been settled before."""
    executions: JoinedArray
    late: JoinedArray
    """Executions of times that had been settled before."""
    others: ExecutionArray
    """Records of synchronisation and of overhead, in no particular order."""
    until_ns: int
    open_ns: dict[int, int]
    """By device, when the earliest execution began that is known, and ended later than `until_ns`."""
    long_launches: CallArray
    """Calls of launches that took long enough for one of `others` to say that it was held back, with their return."""


class Join:
    """Calls and records in, executions with their launches out."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.counts = JoinCounts()
        self.history = History(self._limits.history)
        self._calls = Backlog(wire.CALL)
        self._records = Backlog(RECORDED)
        self._executions = Backlog(EXECUTION)
        self._others = Backlog(EXECUTION)
        self._launches = no_launches()
        self._kept_calls = np.empty(0, wire.CALL)
        """Of `_launches`."""
        self._open_calls = Calls(
            np.empty(0, wire.CALL), np.empty(0, np.int32), np.empty(0, np.bool_)
        )
        """The last of each thread: its record may come later, and what comes later is not of one before. And all of
        launches whose executions are not complete, of a device that is seconds behind its program."""
        self._until_ns = 0

    def add_calls(self, rows: CallArray, numbers: Numbers) -> None:
        """Driver calls of tracked processes, by the number of the process. The arrays are kept."""
        self.counts.launches += int(np.count_nonzero(IS_SUBMISSION[rows["kind"]]))
        self._calls.add(rows, numbers, rows["start_ns"].astype(np.int64))

    def add_records(self, rows: ExecutionArray, numbers: Numbers, now_ns: int | None) -> None:
        """Executions, launches in the driver and the like. What lies hours after `now_ns` has a wrong time."""
        last_ns = _NEVER if now_ns is None else min(now_ns + _LONGEST_NS, _NEVER)
        kinds = rows["kind"].copy()
        executions = (kinds >= GpuKind.KERNEL) & (kinds <= GpuKind.SET)
        self._add_executions(*_chosen(rows, numbers, executions), last_ns)
        if executions.all():
            return
        self._add_launches(*_chosen(rows, numbers, kinds == GpuKind.API), last_ns)
        others, of = _chosen(rows, numbers, (kinds == GpuKind.SYNC) | (kinds == GpuKind.OVERHEAD))
        has_time = (others["start_ns"] <= others["end_ns"]) & (others["end_ns"] <= last_ns)
        others, of = _chosen(others, of, has_time)
        self._others.add(others, of, others["end_ns"].astype(np.int64))

    def overfull_until_ns(self) -> int | None:
        """Until when to settle although not everything may be there: more waits than may. None: there is room."""
        until_ns = []
        if self._calls.count + self._records.count > self._limits.launches:
            until_ns += [b.middle_ns() for b in (self._calls, self._records) if b.count]
        if self._executions.count + self._others.count > self._limits.executions:
            until_ns += [b.middle_ns() for b in (self._executions, self._others) if b.count]
        return max(until_ns, default=None)

    def settle(
        self, until_ns: int, complete_ns: NDArray[np.int64], *, is_forced: bool = False
    ) -> Settled:
        """Executions that ended by `until_ns`, each with its launch or the reason why it has none.

        `complete_ns`: for each process by number, the time before which all launches have their executions here.
        `is_forced`: what has no partner yet is evicted.
        """
        self.counts.forced += is_forced
        launches, calls = self._claim(until_ns, complete_ns)
        due = in_order(self._executions.take(until_ns), self.history, self._until_ns)
        self.counts.pending = self._executions.count
        if due.duplicates:
            self.counts.dropped["duplicate"] += due.duplicates
        begun = (launches.key, launches.begin_ns)
        found = launches_of((due.keys, due.starts_ns), begun, launches.call >= 0)
        launches.executed[found[found >= 0]] = True
        executions, reasons = joined(due.rows, found, launches, calls)
        if is_forced:
            reasons[reasons != NoLaunch.NONE] = NoLaunch.EVICTED
            executions["no_launch"] = reasons
        self._count(reasons)
        self._keep(launches, calls, self._is_needed(launches, until_ns, complete_ns))
        self.history.add(executions, due.ends_ns)
        executions, late = self._split(executions, due.ends_ns <= self._until_ns)
        others = self._others.take_rows(until_ns)
        long = _long_launches(launches, calls, others)
        since_ns, self._until_ns = self._until_ns, max(self._until_ns, until_ns)
        open_ns = self._executions.open_ns()
        return Settled(since_ns, executions, late, others, until_ns, open_ns, long)

    def _split(self, executions: JoinedArray, is_late: Mask) -> tuple[JoinedArray, JoinedArray]:
        """Executions that came in time, and those that came late."""
        if not is_late.any():
            return executions, executions[:0]
        late = executions.take(np.flatnonzero(is_late))
        self.counts.late += len(late)
        return executions.take(np.flatnonzero(~is_late)), late

    def drop(self, number: int) -> None:
        """Forget a process. Executions of it that have not been settled are counted as dropped."""
        for backlog in (self._calls, self._records, self._others):
            backlog.drop(number)
        gone = self._executions.drop(number)
        if gone:
            self.counts.dropped["process_gone"] += gone
        self.counts.pending = self._executions.count
        self._keep(self._launches, self._kept_calls, self._launches.number != number)
        last = self._open_calls
        self._open_calls = take(last, np.flatnonzero(last.number != number))

    @property
    def waiting(self) -> dict[str, int]:
        """Rows that are kept: calls, records, launches of which executions may come, executions, and past ones."""
        return {
            "calls": self._calls.count + len(self._open_calls.rows) + len(self._kept_calls),
            "records": self._records.count + len(self._launches),
            "executions": self._executions.count,
            "history": len(self.history),
        }

    @property
    def is_busy(self) -> bool:
        """Whether more is waiting than is best settled at once."""
        return self._executions.count > _AT_ONCE

    def cuts_ns(self, until_ns: int) -> list[int]:
        """Times at which to settle, one after the other, until `until_ns`: about `_AT_ONCE` executions each."""
        return [*self._executions.cuts_ns(until_ns, _AT_ONCE), until_ns]

    def _add_launches(self, rows: ExecutionArray, numbers: Numbers, last_ns: int) -> None:
        starts = rows["start_ns"].copy()
        has_time = (starts > 0) & (starts <= last_ns)
        self.counts.records += len(rows)
        self.counts.records_without_time += len(rows) - int(np.count_nonzero(has_time))
        rows, numbers = _chosen(rows, numbers, has_time)
        launches = recorded(rows, numbers)
        self._records.add(launches, numbers, launches["begin_ns"].copy())

    def _add_executions(self, rows: ExecutionArray, numbers: Numbers, last_ns: int) -> None:
        starts, ends = rows["start_ns"].copy(), rows["end_ns"].copy()
        wrong = np.zeros(len(rows), np.bool_)
        for reason, has_reason in (
            ("zero_time", (starts == 0) | (ends == 0)),
            ("inverted_time", starts > ends),
            ("impossible_time", (ends > last_ns) | (ends - starts > _LONGEST_NS)),
        ):
            count = int(np.count_nonzero(has_reason & ~wrong))
            if count:
                self.counts.dropped[reason] += count
            wrong |= has_reason
        self.counts.seen += len(rows)
        if wrong.any():
            rows, numbers = _chosen(rows, numbers, ~wrong)
            ends = ends[~wrong]
        self._executions.add(rows, numbers, ends.astype(np.int64), id_keys(rows, numbers))
        self.counts.pending = self._executions.count

    def _claim(self, until_ns: int, complete_ns: NDArray[np.int64]) -> tuple[Launches, CallArray]:
        """Launches that had begun by `until_ns`, and all calls that their `call` may be one of."""
        records, parts = self._records.take(until_ns), self._calls.take(until_ns)
        launches = self._launches.followed_by(
            concatenate([part.rows for part in records], RECORDED), numbers_of(records)
        )
        before, kept = self._open_calls, self._kept_calls
        pool = concatenate([kept, before.rows, *(part.rows for part in parts)], wire.CALL)
        numbers = np.concatenate((before.number, numbers_of(parts)))
        kinds = pool["kind"][len(kept) + len(before.free) :]
        free = np.concatenate((before.free, IS_SUBMISSION[kinds]))
        calls = Calls(pool[len(kept) :], numbers, free)
        starts_ns = np.concatenate((before.rows["start_ns"].astype(np.int64), due_of(parts)))
        stays = starts_ns >= complete_ns[numbers]
        stays[claim_calls(launches, calls, starts_ns, len(kept))] = True
        places = np.flatnonzero(stays)
        if len(places) > self._limits.launches:
            newest = np.argsort(starts_ns[places], kind="stable")[-self._limits.launches :]
            kept_places = places[np.sort(newest)]
            gone = np.setdiff1d(places, kept_places, assume_unique=True)
            self.counts.launches_evicted += int(np.count_nonzero(free[gone]))
            places = kept_places
        self._open_calls = take(calls, places)
        free[places] = False
        self.counts.launches_without_record += int(np.count_nonzero(free))
        return launches, pool

    def _count(self, reasons: NDArray[np.uint8]) -> None:
        counted = np.bincount(reasons, minlength=1).tolist()
        self.counts.joined += counted[NoLaunch.NONE]
        for reason in range(1, len(counted)):
            if counted[reason]:
                self.counts.without_launch[NoLaunch(reason)] += counted[reason]

    def _is_needed(self, launches: Launches, until_ns: int, complete_ns: NDArray[np.int64]) -> Mask:
        """Launches of which executions are waiting, or may still come."""
        needed = launches.begin_ns >= complete_ns[launches.number]
        needed |= ~launches.executed & (launches.begin_ns > until_ns - LATE_NS)
        for part in self._executions.parts:
            open_ones = np.flatnonzero(~needed)
            if not len(open_ones):
                break
            needed[open_ones] = contains(launches.key[open_ones], part.keys)
        return needed

    def _keep(self, launches: Launches, calls: CallArray, needed: Mask) -> None:
        """Let go of all launches but those `needed`, and of the oldest where these are too many."""
        places = np.flatnonzero(needed)
        gone = np.flatnonzero(~needed)
        without_probe = launches.call[gone] < 0
        self.counts.records_without_probe += int(np.count_nonzero(without_probe))
        self.counts.never_executed += int(np.count_nonzero(~launches.executed[gone]))
        if len(places) > self._limits.launches:
            newest = np.argsort(launches.begin_ns[places], kind="stable")[-self._limits.launches :]
            self.counts.launches_evicted += len(places) - len(newest)
            places = places[np.sort(newest)]
        kept = take(launches, places)
        has_call = np.flatnonzero(kept.call >= 0)
        self._kept_calls = calls.take(kept.call[has_call])
        kept.call[has_call] = np.arange(len(has_call))
        self._launches = kept


def _long_launches(launches: Launches, calls: CallArray, others: ExecutionArray) -> CallArray:
    """Calls of launches that last as long as the shortest record of a full queue, with the time of their return."""
    full = others.take(np.flatnonzero(is_full_queue(others)))
    if not len(full):
        return calls[:0]
    returned_ns = np.zeros(len(calls), np.int64)
    # A record without a length, as those found by order have, says nothing of the return.
    has_return = np.flatnonzero((launches.call >= 0) & (launches.end_ns > launches.begin_ns))
    returned_ns[launches.call[has_return]] = launches.end_ns[has_return]
    return long_launches(calls, returned_ns, int((full["end_ns"] - full["start_ns"]).min()))


def _chosen(rows: ExecutionArray, numbers: Numbers, chosen: Mask) -> tuple[ExecutionArray, Numbers]:
    places = np.flatnonzero(chosen)
    if len(places) and places[-1] - places[0] == len(places) - 1:
        # Side by side, as CUPTI fills buffers with records of one kind: nothing is copied.
        which = slice(places[0], places[-1] + 1)
        return rows[which], numbers[which]
    # numpy.take, since indexing with a mask copies records field by field.
    return rows.take(places), numbers.take(places)
