"""A whole recording as the agent would have captured it: launches and executions only inside windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Final

import numpy as np

from otel_gpuflame.capture.plan import PlannedWindow, plan_window
from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import (
    EXECUTION,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Devices,
    Event,
    Names,
    SamplingWindow,
    Stacks,
    Targets,
    Watermark,
)
from otel_gpuflame.events.windowed import are_windowed, launch_graphs, may_wait
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle, ValueType

MS: Final = 1_000_000
OPENS_NS: Final = 500_000
"""The library begins so much later than probes, and ends before they go: as a device does, but for shorter windows."""
ENDS_NS: Final = 250_000
ROUND_NS: Final = 10 * MS
PPB: Final = 1_000_000_000
_WORK: Final = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)


class Offset(Random):
    """Puts each window at the same share of where it may be: evenly spaced ones make up all that can happen."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self._share


@dataclass(frozen=True)
class Recording:
    """All events of a recording of one process, of which only the time from `begin_ns` on is of interest."""

    events: list[Event]
    begin_ns: int

    @cached_property
    def calls(self) -> CallArray:
        rows = concatenate([e.rows for e in self.events if isinstance(e, Calls)], wire.CALL)
        return rows.take(np.flatnonzero(rows["start_ns"] >= self.begin_ns))

    @cached_property
    def records(self) -> ExecutionArray:
        return concatenate([e.rows for e in self.events if isinstance(e, Executions)], EXECUTION)

    @cached_property
    def process(self) -> ProcessKey:
        return next(e.process for e in self.events if isinstance(e, ExecutionsBegin))

    @cached_property
    def asked_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """When what each record is of was launched: from the order of calls in the whole recording."""
        stage = InferredLaunches()
        found = [out for event in self.events for out in stage.feed(event)] + stage.finish()
        rows = concatenate([e.rows for e in found if isinstance(e, Executions)], EXECUTION)
        launches = rows[rows["kind"] == GpuKind.API]
        by_id = dict(
            zip(launches["correlation_id"].tolist(), launches["start_ns"].tolist(), strict=True)
        )
        return np.array(
            [
                by_id.get(id_, start_ns) if kind in _WORK else start_ns
                for id_, kind, start_ns in self.records[
                    ["correlation_id", "kind", "start_ns"]
                ].tolist()
            ],
            np.int64,
        )

    @property
    def end_ns(self) -> int:
        return max(int(self.calls["end_ns"].max()), int(self.records["end_ns"].max())) + MS

    def gpu_time_ns(self, until_ns: int) -> int:
        """Of everything that was launched from `begin_ns` to then."""
        chosen = np.isin(self.records["kind"], _WORK)
        chosen &= (self.asked_ns >= self.begin_ns) & (self.asked_ns < until_ns)
        rows = self.records[chosen]
        return int((rows["end_ns"] - rows["start_ns"]).sum())


@dataclass(frozen=True)
class Schedule:
    """Strata of `stratum_ns` with windows of a share `duty`, from the recording's begin to `until_ns`."""

    stratum_ns: int
    duty: float
    until_ns: int
    incomplete: str = ""
    """What the library says of each window."""
    with_waits: bool = False
    """Whether calls that may wait are windowed, too."""
    with_graph_launches: bool = False
    """Whether launches of graphs are."""

    def plan(self, begin_ns: int, random: Random) -> Iterator[PlannedWindow]:
        for start_ns in range(begin_ns, self.until_ns, self.stratum_ns):
            yield plan_window(start_ns, self.stratum_ns, self.duty, random)


def windowed(recording: Recording, schedule: Schedule, random: Random) -> Iterator[Event]:
    """The events that an agent would have had, in rounds."""
    known = (CaptureStart, Stacks, Names, Targets, Devices)
    yield from (event for event in recording.events if isinstance(event, known))
    timed: list[tuple[int, int, Event]] = []
    calls = recording.calls
    is_kept = ~are_windowed(calls)
    if schedule.with_waits:
        is_kept &= ~may_wait(calls) | (calls["start_ns"] >= schedule.until_ns)
    if schedule.with_graph_launches:
        is_kept &= ~launch_graphs(calls) | (calls["start_ns"] >= schedule.until_ns)
    intervals: list[tuple[int, int]] = []
    in_library = np.zeros(len(recording.records), np.bool_)
    starts_ns = calls["start_ns"].astype(np.int64)
    for plan in schedule.plan(recording.begin_ns, random):
        timed.append((plan.open_ns, 0, _announced(plan, schedule)))
        is_kept |= (starts_ns >= plan.open_ns) & (starts_ns < plan.close_ns)
        if plan.probability < 1:
            intervals.append((plan.open_ns + OPENS_NS, plan.close_ns - ENDS_NS))
    if schedule.duty == 1:
        intervals.append((recording.begin_ns, schedule.until_ns))
    said_ns = 0
    for begin_ns, end_ns in intervals:
        if begin_ns >= end_ns:
            continue
        mine = (recording.asked_ns >= begin_ns) & (recording.asked_ns < end_ns)
        in_library |= mine
        begin_said_ns = max(begin_ns, said_ns + 1)
        said_ns = max(end_ns, int(recording.records["end_ns"][mine].max(initial=0))) + ROUND_NS
        timed.append((begin_said_ns, 1, ExecutionsBegin(recording.process, begin_ns)))
        end = ExecutionsEnd(recording.process, end_ns, schedule.incomplete)
        timed.append((said_ns, 4, end))
    records = recording.records.take(np.flatnonzero(in_library))
    timed += _rounds(calls.take(np.flatnonzero(is_kept)), records, recording.end_ns)
    for time_ns in range(recording.begin_ns, recording.end_ns + 3 * ROUND_NS, ROUND_NS):
        timed.append((time_ns, 3, ExecutionWatermark(recording.process, time_ns - ROUND_NS)))
        timed.append((time_ns, 5, Watermark(time_ns)))
    yield from (event for _, _, event in sorted(timed, key=lambda item: item[:2]))


def _announced(plan: PlannedWindow, schedule: Schedule) -> SamplingWindow:
    return SamplingWindow(
        stratum_start_ns=plan.stratum_start_ns,
        stratum_end_ns=plan.stratum_end_ns,
        open_ns=plan.open_ns,
        close_ns=plan.close_ns,
        probability_ppb=round(plan.probability * PPB),
        with_waits=schedule.with_waits,
        with_graph_launches=schedule.with_graph_launches,
    )


def _rounds(
    calls: CallArray, records: ExecutionArray, end_ns: int
) -> Iterator[tuple[int, int, Event]]:
    """Rows when the round is over in which they can be had."""
    for rows, kind in ((calls, Calls), (records, Executions)):
        at_ns = np.maximum(rows["start_ns"], rows["end_ns"]).astype(np.int64)
        rounds = at_ns // ROUND_NS
        for number in np.unique(rounds).tolist():
            some = rows.take(np.flatnonzero(rounds == number))
            yield min((number + 1) * ROUND_NS, end_ns), 2, kind(some)


def aggregate(events: Iterable[Event]) -> tuple[list[Bundle], CorrelatingAggregator]:
    """What the agent would have sent, and its books."""
    both = CorrelatingAggregator(
        AggregateOptions(window_ns=1_000 * MS, span_link=None, sampled=True)
    )
    bundles = [bundle for event in events for bundle in both.feed(event)]
    return bundles + both.finish(), both


def total(bundles: Iterable[Bundle], sample_type: ValueType, scope: str) -> int:
    """Σ of a sample type in a scope."""
    return sum(
        profile.total
        for bundle in bundles
        if bundle.scope == scope
        for profile in bundle.profiles
        if profile.sample_type == sample_type
    )
