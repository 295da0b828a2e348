"""Sums stay exact whatever arrives: any order, missing and doubled records, clocks that step, ids that come again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.correlate.gpu.join import Limits
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import Attributions, Measure
from otel_gpuflame.events.executions import (
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.records import CallArray, Calls, Event, ProcessesEnded, Watermark
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.traffic import (
    OTHER,
    PROCESS,
    SECOND,
    THREAD,
    call,
    executed,
    launched,
)

MS = 1_000_000
LAST_ID = 2**32 - 1
TIMES = st.one_of(st.integers(0, 40), st.integers(0, 4_000), st.just(3_600_000)).map(
    lambda time: time * MS
)
"""Near each other, over seconds, and an hour ahead, as after a step of the clock."""
IDS = st.sampled_from([0, 1, 2, LAST_ID - 1, LAST_ID])
PROCESSES = st.sampled_from([PROCESS, OTHER])
LENGTHS = st.sampled_from([0, 1, MS, 700 * MS])


@st.composite
def _rows(draw: st.DrawFn) -> Event:
    """A launch, a wait, a record of a launch or an execution: each with or without the others."""
    time, length, process = draw(TIMES), draw(LENGTHS), draw(PROCESSES)
    thread, id_ = draw(st.sampled_from([THREAD, SECOND])), draw(IDS)
    which = draw(st.integers(0, 4))
    if which == 0:
        return Calls(call(id_ % 7, time, process=process, thread=thread, stream=id_ % 3))
    if which == 1:
        api = draw(st.sampled_from(["cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH"]))
        return Calls(call(3, time, time + length, api, process=process, thread=thread))
    if which == 2:
        return Executions(launched(id_, time, time + length, process=process, thread=thread))
    # Also ends before begins, and no time at all.
    end = time + length if which == 3 else draw(TIMES)
    device = draw(st.integers(0, 1))
    return Executions(executed(id_, time, end, process=process, device=device, stream_id=id_ % 3))


@st.composite
def _signs(draw: st.DrawFn) -> Event:
    """What says how far a source has come, and begins and ends of processes, in no sensible order."""
    process, time = draw(PROCESSES), draw(TIMES)
    signs: list[Event] = [
        ExecutionsBegin(process, time),
        ExecutionWatermark(process, time),
        ExecutionsEnd(process, time),
        Watermark(time),
        ProcessesEnded((process,)),
    ]
    return draw(st.sampled_from(signs))


EVENTS = st.lists(st.one_of(_rows(), _rows(), _rows(), _signs()), max_size=60)
LIMITS = st.sampled_from([None, Limits(launches=4, executions=4, history=4)])


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, limits=LIMITS)
def test_every_execution_and_every_call_is_told_once(
    events: list[Event], limits: Limits | None
) -> None:
    """Nothing fails; executions seen are attributed or dropped with a reason, and `gpu_time` is what they took."""
    correlator = GpuCorrelator(limits)
    told = [each for event in events for each in correlator.feed(event)] + correlator.finish()
    counts = correlator.counts
    assert counts.seen == counts.attributed + sum(counts.dropped.values())
    assert counts.pending == 0
    rows = [each.rows for each in told if isinstance(each, Attributions)]
    assert all((part["value_ns"] >= 0).all() for part in rows)
    times = [part[part["measure"] == Measure.GPU_TIME] for part in rows]
    assert sum(len(part) for part in times) == counts.attributed
    told_ns = sum(int(part["value_ns"].sum()) for part in times)
    if counts.dropped.keys() <= {"zero_time", "inverted_time"}:
        assert told_ns == _executed_ns(events)
    assert told_ns <= _executed_ns(events)
    assert _starts(told) == _starts(events)


def _executed_ns(events: list[Event]) -> int:
    """How long all executions took that have both times, in order."""
    rows = [event.rows for event in events if isinstance(event, Executions)]
    found_ns = 0
    for each in rows:
        start, end = int(each["start_ns"][0]), int(each["end_ns"][0])
        if each["kind"][0] == GpuKind.KERNEL and 0 < start <= end:
            found_ns += end - start
    return found_ns


def _starts(events: list[Event]) -> list[int]:
    """When all calls began."""
    none: CallArray = np.empty(0, wire.CALL)
    rows = np.concatenate([none, *(each.rows for each in events if isinstance(each, Calls))])
    return sorted(rows["start_ns"].tolist())


def test_the_events_of_this_module_reach_the_join() -> None:
    """A launch, its record and its execution, as above, make one pair: the property is not of refused rows."""
    correlator = GpuCorrelator()
    events: list[Event] = [
        ExecutionsBegin(PROCESS, 0),
        Calls(call(1, MS, stream=1)),
        Executions(launched(1, MS, 2 * MS)),
        Executions(executed(1, 3 * MS, 4 * MS)),
    ]
    for event in events:
        correlator.feed(event)
    correlator.finish()
    assert correlator.counts.joined == 1
