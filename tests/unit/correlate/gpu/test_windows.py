"""Executions that come in windows: nothing is said about what was launched before them."""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.correlate.gpu.first_waits import FirstWaits
from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.correlate.gpu.seen import Seen
from otel_gpuflame.correlate.gpu.unknown import Unknown
from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.executions import (
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Calls, Event, SamplingWindow, Watermark
from otel_gpuflame.events.wire import CallFlag
from tests.unit.correlate.gpu.program import MS, Program, attributed, calls_of
from tests.unit.correlate.gpu.traffic import OTHER, PROCESS, call, executed, launched

S: Final = 1_000 * MS


def window(open_ns: int, close_ns: int, ppb: int = 100_000_000) -> SamplingWindow:
    """A stratum of ten seconds with this window."""
    return SamplingWindow(open_ns - S, open_ns + 9 * S, open_ns, close_ns, ppb)


def test_a_process_is_seen_from_its_start_if_it_began_in_sight() -> None:
    """Windows that follow one another without a gap are one; without windows everything is seen."""
    seen = Seen()
    assert seen.from_start(ProcessKey(1, 0))
    seen.note(window(5 * S, 6 * S))
    assert not seen.from_start(ProcessKey(1, 5 * S - 1))
    assert seen.from_start(ProcessKey(1, 5 * S))
    seen.note(window(6 * S, 16 * S))
    assert seen.from_start(ProcessKey(1, 5 * S))
    seen.note(window(17 * S, 18 * S))
    assert not seen.from_start(ProcessKey(1, 16 * S))


def test_first_waits_are_told_from_later_ones() -> None:
    """Of each thread, for each stream; the first that began inside tells when all before is over."""
    rows = np.concatenate(
        [
            call(2, 5, 12, "cuStreamSynchronize", stream=1),
            call(2, 14, 18, "cuStreamSynchronize", stream=1),
            call(2, 17, 19, "cuStreamSynchronize", stream=1),
            call(2, 18, 20, "cuStreamSynchronize", stream=1),
            call(2, 30, 35, "cuStreamSynchronize", stream=2),
            call(2, 30, 35, "cuStreamSynchronize", stream=1, tid=7),
            call(2, 40, 45, "cuCtxSynchronize"),
        ]
    )
    numbers, begin = np.zeros(len(rows), np.int32), np.full(len(rows), 10)
    waits = FirstWaits()
    assert waits.are_past(rows, numbers, begin).tolist() == [
        *(False, False, False, True, False, False, False)
    ]
    later = call(2, 50, 55, "cuStreamSynchronize", stream=2)
    assert waits.are_past(later, numbers[:1], begin[:1]).tolist() == [True]
    waits.forget(0)
    assert waits.are_past(later, numbers[:1], begin[:1]).tolist() == [False]


def two_windows() -> list[Event]:
    """A busy stream, seen in two windows half a second apart. Launches are 5 ms ahead of the device."""
    events: list[Event] = []
    for begin in (10 * S, 10 * S + 500 * MS):
        events += [window(begin, begin + 100 * MS), ExecutionsBegin(PROCESS, begin)]
        for number in range(10):
            at = begin + 10 * MS * number + MS
            id_ = number + begin // (100 * MS) + 1
            runs = (at + 5 * MS, at + 9 * MS)
            waits = call(2, at + MS, at + 9 * MS, "cuStreamSynchronize")
            events += [
                Calls(np.concatenate([call(1, at), waits])),
                Executions(
                    np.concatenate([launched(id_, at + 100, at + 900), executed(id_, *runs)])
                ),
            ]
        end = begin + 100 * MS
        events += [ExecutionsEnd(PROCESS, end), Watermark(end + 10 * MS)]
    return events


def run(events: list[Event]) -> list[Event]:
    """Everything that comes out."""
    correlator = GpuCorrelator()
    return [*(out for event in events for out in correlator.feed(event)), *correlator.finish()]


def test_what_a_stream_did_before_the_window_is_not_queueing() -> None:
    """Of the first execution of each window nobody knows since when it could have begun; of the others it is 5 ms."""
    rows = attributed(run(two_windows()))
    queued = rows[rows["measure"] == Measure.GPU_QUEUE]
    assert queued["value_ns"].tolist() == [5 * MS] * 18
    assert int(rows["value_ns"][rows["measure"] == Measure.GPU_TIME].sum()) == 20 * 4 * MS


def test_the_first_wait_for_a_stream_keeps_its_time_and_no_reason() -> None:
    """In each window; those after it are explained, whole. No nanosecond counts twice."""
    events = run(two_windows())
    calls, rows = calls_of(events), attributed(events)
    waits = calls[calls["end_ns"] > 0]
    is_told = (waits["flags"] & CallFlag.ATTRIBUTED) != 0
    assert np.count_nonzero(~is_told) == 2
    explained = rows[rows["measure"] == Measure.GPU_WAIT]
    assert int(explained["value_ns"].sum()) == 18 * 8 * MS
    assert set(explained["sampled_ns"].tolist()) == {0}


def test_a_window_that_follows_soon_leaves_the_one_before_its_idle_time() -> None:
    """Both are told, and the time between them is not: there the device was out of sight."""
    rows = attributed(run(two_windows()))
    idle = rows[(rows["measure"] == Measure.GPU_IDLE)]
    known = idle[~np.isin(idle["leaf"], [Leaf.UNKNOWN_NOT_CAPTURED, Leaf.AFTER_LAST])]
    assert Leaf.UNKNOWN_INCOMPLETE not in idle["leaf"]
    assert int(known["value_ns"].sum()) == 2 * 9 * 6 * MS
    for begin in (10 * S, 10 * S + 500 * MS):
        inside = (known["sampled_ns"] >= begin) & (known["sampled_ns"] < begin + 100 * MS)
        assert int(known["value_ns"][inside].sum()) == 9 * 6 * MS


def test_what_a_program_launched_before_its_window_was_known_hides_no_idle_time() -> None:
    """Its calls come before it is said that it is captured: they are no work of somebody else."""
    program = Program()
    for at in range(MS, 400 * MS, 10 * MS):
        program.kernel(at, at + 5_000, at + 4 * MS)
    begin, *events = program.events(500 * MS)
    other = Calls(call(9, 300 * MS, process=OTHER))
    late = [events[0], begin, *events[1:]]
    for order, is_hidden in ((late, False), ([events[0], other, begin, *events[1:]], True)):
        rows = attributed(run([window(0, 500 * MS), *order]))
        leaf = rows["leaf"][rows["measure"] == Measure.GPU_IDLE]
        hidden = int(rows["value_ns"][np.isin(rows["leaf"], [Leaf.UNKNOWN_NOT_CAPTURED])].sum())
        assert Leaf.NO_SAMPLE in leaf
        assert (hidden > 50 * MS) is is_hidden


def test_a_process_that_is_captured_uses_its_devices_in_sight() -> None:
    """Its submissions make nothing unknown from then on; those of others still do."""
    unknown = Unknown()
    unknown.submitted(PROCESS, np.array([10 * S], np.uint64))
    unknown.submitted(OTHER, np.array([10 * S], np.uint64))
    unknown.begin(PROCESS, 10 * S + 7)
    assert unknown.on(0, set())["end_ns"].tolist() == [10 * S + 7, 11 * S]


def test_pairing_does_not_begin_with_the_first_launch_of_a_window() -> None:
    """A program that has run for long had launched before, out of sight: only a synchronisation tells who is whose."""
    stage = InferredLaunches()
    at = 10 * S + 50 * MS
    work = executed(5, at + 5_000, at + 9_000, context_id=1)
    events: list[Event] = [
        window(10 * S, 10 * S + 200 * MS),
        ExecutionsBegin(PROCESS, 10 * S),
        Calls(call(1, at)),
        Executions(work),
        ExecutionWatermark(PROCESS, 10 * S + 200 * MS),
        Watermark(10 * S + 200 * MS),
    ]
    assert [out for event in events for out in stage.feed(event)] == events
    assert stage.counts["inferred"] == 0
    without_windows = InferredLaunches()
    for event in events[1:]:
        without_windows.feed(event)
    assert without_windows.counts["inferred"] == 1


def test_a_wait_that_outlives_its_process_s_window_comes_out_while_another_goes_on() -> None:
    """The second process's window ends in the middle of its wait, and the first process's does not."""
    events: list[Event] = [
        window(0, 900 * MS),
        ExecutionsBegin(PROCESS, 0),
        ExecutionsBegin(OTHER, 0),
        Calls(call(2, 290 * MS, 530 * MS, "cuCtxSynchronize", process=OTHER)),
        ExecutionsEnd(OTHER, 300 * MS),
    ]
    for now in range(500 * MS, 2 * S, 50 * MS):
        events += [ExecutionWatermark(PROCESS, now), Watermark(now)]
    out = run(events)
    assert calls_of(out)["end_ns"].tolist() == [530 * MS]
