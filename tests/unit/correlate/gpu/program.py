"""Made-up programs that use a GPU, as events of both sides in rounds, in the order and with the faults asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import ATTRIBUTION, AttributionArray, Attributions, Measure
from otel_gpuflame.events.executions import (
    EXECUTION,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Calls, Event, Watermark
from tests.unit.correlate.gpu.traffic import PROCESS, THREAD, call, executed, launched

MS: Final = 1_000_000
ROUND: Final = 50 * MS


@dataclass
class Program:
    """Collects rows with the time at which each can be delivered at the earliest."""

    process: ProcessKey = PROCESS
    calls: list[tuple[int, CallArray]] = field(default_factory=list)
    records: list[tuple[int, ExecutionArray]] = field(default_factory=list)
    launches: list[tuple[int, int]] = field(default_factory=list)
    """When each was made, and when what it asked for ended."""
    next_id: int = 1

    def kernel(self, at: int, start: int, end: int, **fields: Any) -> None:
        """A launch at `at` of what runs from `start` to `end`. `stack`, `thread`, `api`, and columns of `EXECUTION`."""
        stack, thread = fields.pop("stack", 1), fields.pop("thread", THREAD)
        api, stream = fields.pop("api", "cuLaunchKernel"), fields.pop("stream", 0)
        where: dict[str, Any] = {"process": self.process}
        row = call(stack, at, api=api, stream=stream, thread=thread, **where)
        self.calls.append((at, row))
        record = launched(self.next_id, at + 100, at + 2_000, thread=thread, **where)
        self.records.append((at + 2_000, record))
        self.records.append((end, executed(self.next_id, start, end, **where, **fields)))
        self.launches.append((at, end))
        self.next_id += 1

    def wait(self, at: int, until: int, api: str = "cuCtxSynchronize", **fields: Any) -> None:
        """A call that waits."""
        stack = fields.pop("stack", 2)
        self.calls.append((until, call(stack, at, until, api, process=self.process, **fields)))

    def events(self, end: int, *, is_whole: bool = True) -> list[Event]:
        """Everything until `end`, in rounds; `is_whole`: with a begin and an end."""
        events: list[Event] = [ExecutionsBegin(self.process, 0)] if is_whole else []
        for begin in range(0, end, ROUND):
            now = begin + ROUND
            events += self._round(begin, now)
            running = [at for at, end in self.launches if at < now <= end]
            complete = min(running, default=now)
            events += [ExecutionWatermark(self.process, complete), Watermark(now)]
        return [*events, ExecutionsEnd(self.process, end)] if is_whole else events

    def _round(self, begin: int, now: int) -> list[Event]:
        calls = [row for at, row in self.calls if begin <= at < now]
        records = [row for at, row in self.records if begin <= at < now]
        events: list[Event] = [Calls(np.concatenate(calls))] if calls else []
        return [*events, Executions(np.concatenate(records))] if records else events


def attributed(events: Iterable[Event]) -> AttributionArray:
    """All attributions among events."""
    rows = [event.rows for event in events if isinstance(event, Attributions)]
    return np.concatenate([np.empty(0, ATTRIBUTION), *rows])


def calls_of(events: Iterable[Event]) -> CallArray:
    """All calls among events."""
    rows = [event.rows for event in events if isinstance(event, Calls)]
    return np.concatenate([np.empty(0, wire.CALL), *rows])


def total_ns(rows: AttributionArray, measure: Measure) -> int:
    """Σ of what was measured."""
    return int(rows["value_ns"][rows["measure"] == measure].sum())


def rebatched(events: Sequence[Event], sizes: Iterable[int]) -> list[Event]:
    """The same rows in the same order, in batches of other sizes: neighbours of one type are joined, then cut."""
    result: list[Event] = []
    cut = iter(sizes)
    for event in events:
        if not isinstance(event, Calls | Executions):
            result.append(event)
            continue
        rows, of_type = event.rows, type(event)
        last = result[-1] if result else None
        if isinstance(last, Calls | Executions) and isinstance(last, of_type):
            rows = np.concatenate([last.rows, rows])
            result.pop()
        while len(rows):
            size = next(cut, len(rows))
            result.append(of_type(rows[:size].copy()))
            rows = rows[size:]
    return result


def executions_of(events: Iterable[Event]) -> ExecutionArray:
    """All records among events."""
    rows = [event.rows for event in events if isinstance(event, Executions)]
    return np.concatenate([np.empty(0, EXECUTION), *rows])
