"""Executions with their launches, and calls, written down one by one: times are small numbers of nanoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otel_gpuflame.correlate.gpu.legacy import Defaults, find_defaults
from otel_gpuflame.correlate.gpu.marks import Marks, find_marks
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, by_device, concatenate
from otel_gpuflame.correlate.gpu.scopes import Scopes, find_scopes
from otel_gpuflame.correlate.gpu.streams import EMPTY, StreamTable, learn
from otel_gpuflame.correlate.gpu.work import Work, arrange
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import AttributionArray, Leaf, NoLaunch
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind

PROCESS, OTHER_PROCESS = 100, 200
MAIN, SECOND = 100, 101
"""Threads. The main thread's id is that of the process."""
A, B, C = 0xA000, 0xB000, 0xC000
"""Stream handles: those of streams that a program made."""
STREAM_IDS = {0: 7, 1: 7, A: 13, B: 14, C: 15}


@dataclass
class Scene:
    """Collects rows. Executions are known by their `name`, a number from 1."""

    executions: list[JoinedArray] = field(default_factory=list)
    rows: list[CallArray] = field(default_factory=list)
    before: StreamTable = EMPTY
    """What is known of streams from before."""

    def run(self, name: int, at: int, start: int, end: int, **fields: Any) -> None:
        """An execution from `start` to `end` that a launch at `at` asked for.

        Keywords: `stream` (handle), `api`, and columns of `JOINED`.
        """
        row = np.zeros(1, JOINED)
        api = apis.BY_NAME[fields.pop("api", "cuLaunchKernel")]
        stream = fields.pop("stream", 0)
        known: dict[str, Any] = {
            "tgid": PROCESS,
            "tid": MAIN,
            "context_id": 1,
            "stream": stream,
            "stream_id": STREAM_IDS.get(stream, 99),
            "launch_start_ns": at,
            "launch_kind": api.kind,
            "api": api.id,
            "kind": {Kind.COPY: GpuKind.COPY, Kind.SET: GpuKind.SET}.get(api.kind, GpuKind.KERNEL),
        }
        known |= {"name": name, "start_ns": start, "end_ns": end, "stack_hash": name} | fields
        known["process_start_ns"] = known["tgid"]
        if known.get("no_launch", NoLaunch.NONE) != NoLaunch.NONE:
            unknown = ("tid", "stream", "launch_start_ns", "launch_kind", "api", "stack_hash")
            known |= dict.fromkeys(unknown, 0)
        for column, value in known.items():
            row[column] = value
        self.executions.append(row)

    def call(self, api: str, at: int, until: int | None = None, **fields: Any) -> None:
        """A call of the library from `at`; `until` None: it has no return probe."""
        known = apis.BY_NAME[api]
        self._add(at, until, api=known.id, kind=known.kind, **fields)

    def thread(self, kind: Kind, at: int, until: int | None = None, **fields: Any) -> None:
        """A sample, a time off the CPU, or a system call (`api` 300: ioctl)."""
        self._add(at, until, kind=kind, **fields)

    def _add(self, at: int, until: int | None, **fields: Any) -> None:
        row = np.zeros(1, wire.CALL)
        known: dict[str, Any] = {"tgid": PROCESS, "tid": MAIN, "start_ns": at} | fields
        known["process_start_ns"] = known["tgid"]
        if until is not None:
            known["end_ns"] = until
            known["flags"] = CallFlag.RETURNED
        for column, value in known.items():
            row[column] = value
        self.rows.append(row)

    def joined(self) -> JoinedArray:
        """All executions, in the order in which they are handed on."""
        return by_device(concatenate([np.zeros(0, JOINED), *self.executions], JOINED))

    def calls(self) -> CallArray:
        """All calls, in the order in which they were written down."""
        return np.concatenate([np.zeros(0, wire.CALL), *self.rows])

    def waits(self) -> CallArray:
        """Those that returned."""
        rows = self.calls()
        return rows.take(np.flatnonzero(rows["flags"] & CallFlag.RETURNED))

    def arranged(self) -> Arranged:
        """Everything that is derived from executions and calls."""
        joined = self.joined()
        table = learn(self.before, joined)
        work = arrange(joined, table)
        defaults = find_defaults(work, table)
        marks = find_marks(self.calls(), work, table)
        return Arranged(table, work, defaults, marks)

    def scopes(self) -> tuple[Scopes, Work]:
        """What its waits wait for."""
        known = self.arranged()
        scopes = find_scopes(self.waits(), known.work, known.table, known.defaults, known.marks)
        return scopes, known.work

    def waited_for(self) -> list[set[int]]:
        """Names of the executions that each wait waits for: those that had not ended when it began."""
        scopes, work = self.scopes()
        waits = self.waits()
        names: list[set[int]] = [set() for _ in waits]
        for wait, lane, until, _ in zip(*scopes.pairs, strict=True):
            chosen = (work.lane == lane) & (work.entry_ns <= until)
            chosen &= work.end_ns > waits["start_ns"][wait]
            names[wait] |= set(work.rows["name"][work.row[chosen]].tolist())
        return names


@dataclass(frozen=True)
class Arranged:
    """What the functions under test work on."""

    table: StreamTable
    work: Work
    defaults: Defaults
    marks: Marks


def record(kind: GpuKind, detail: int, start: int, end: int, **fields: Any) -> ExecutionArray:
    """A synchronisation or overhead record, as an array of one row."""
    row = np.zeros(1, EXECUTION)
    known: dict[str, Any] = {"kind": kind, "detail": detail, "start_ns": start, "end_ns": end}
    known |= {"tgid": PROCESS, "process_start_ns": PROCESS} | fields
    for column, value in known.items():
        row[column] = value
    return row


def by_leaf(rows: AttributionArray) -> dict[tuple[Leaf, int], int]:
    """Values by leaf and name: the kernel's, or that of the stack for a leaf that is no kernel."""
    return _added_up(rows, lambda row: (Leaf(row["leaf"]), int(row["name"])))


def by_stack(rows: AttributionArray) -> dict[tuple[Leaf, int], int]:
    """Values by leaf and stack."""
    return _added_up(rows, lambda row: (Leaf(row["leaf"]), int(row["stack_hash"][0])))


def _added_up(
    rows: AttributionArray, key: Callable[[Any], tuple[Leaf, int]]
) -> dict[tuple[Leaf, int], int]:
    found: Counter[tuple[Leaf, int]] = Counter()
    for row in rows:
        found[key(row)] += int(row["value_ns"])
    return dict(found)
