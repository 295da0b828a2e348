"""Events in, events out: what passes, what is held back, and what executions say in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.correlator import GIVE_UP_NS, GRACE_NS, GpuCorrelator
from otel_gpuflame.correlate.gpu.join import Limits
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure, NoLaunch
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import (
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    Calls,
    CaptureStart,
    Event,
    ProcessesEnded,
    TargetInfo,
    Targets,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.program import (
    MS,
    ROUND,
    Program,
    attributed,
    calls_of,
    executions_of,
    rebatched,
    total_ns,
)
from tests.unit.correlate.gpu.traffic import (
    OTHER,
    PROCESS,
    SECOND,
    THREAD,
    call,
    executed,
    launched,
)

SECOND_NS = 1000 * MS
SLOW = [HealthCheck.too_slow]
"""A loaded machine makes examples slowly, which says nothing about them."""


def run(events: Iterable[Event], correlator: GpuCorrelator | None = None) -> list[Event]:
    """Everything that comes out for these events."""
    correlator = correlator or GpuCorrelator()
    return [*(out for event in events for out in correlator.feed(event)), *correlator.finish()]


def values(rows: AttributionArray, measure: Measure) -> dict[Any, int]:
    """Values by leaf, stack and kernel."""
    found: Counter[Any] = Counter()
    for row in rows[rows["measure"] == measure]:
        found[Leaf(row["leaf"]), int(row["stack_hash"][0]), int(row["name"])] += int(
            row["value_ns"]
        )
    return dict(found)


def times_of_watermarks(events: Iterable[Event]) -> list[int]:
    """What the next stage is told to be complete."""
    return [event.time_ns for event in events if isinstance(event, Watermark)]


def training(steps: int = 40) -> Program:
    """A kernel of 4 ms every 9 ms, each waited for."""
    program = Program()
    for at in range(MS, MS + steps * 9 * MS, 9 * MS):
        program.kernel(at, at + 5_000, at + 5_000 + 4 * MS, stack=10, name=100)
        program.wait(at + 50_000, at + 4 * MS + 30_000, stack=20)
    return program


def as_set(rows: Any) -> Counter[str]:
    """Rows without their order."""
    return Counter(map(repr, rows.tolist()))


def assert_balanced(correlator: GpuCorrelator) -> None:
    """Every execution that was seen is attributed, dropped for a reason, or pending."""
    counts = correlator.counts
    assert counts.seen == counts.attributed + counts.dropped.total() + counts.pending


def test_without_executions_events_pass_as_they_are() -> None:
    """While no process has executions each event comes out at once, and is the very same."""
    events: list[Event] = [
        CaptureStart(time_ns=0, unix_offset_ns=0, attributes=()),
        Calls(call(1, 10)),
        Calls(call(2, 20, 30, "cuCtxSynchronize")),
        Devices(()),
        ProcessesEnded((PROCESS,)),
        Watermark(50),
    ]
    correlator = GpuCorrelator()
    for event in events:
        (out,) = correlator.feed(event)
        assert out is event
    assert correlator.finish() == []


def test_a_step_is_told_whole() -> None:
    """Kernel time under the launch, the wait by what ran meanwhile, the queue, and idle time by what the thread did."""
    rows = attributed(run(training().events(600 * MS)))
    assert values(rows, Measure.GPU_TIME) == {(Leaf.KERNEL, 10, 100): 40 * 4 * MS}
    assert values(rows, Measure.GPU_WAIT) == {
        (Leaf.KERNEL, 20, 100): 40 * (4 * MS - 45_000),
        (Leaf.DRIVER, 20, 0): 40 * 25_000,
    }
    assert values(rows, Measure.GPU_QUEUE) == {(Leaf.LAUNCH_LATENCY, 10, 100): 40 * 5_000}
    idle = values(rows, Measure.GPU_IDLE)
    assert idle[Leaf.DRIVER_CALL, 20, 0] == 39 * 25_000
    assert idle[Leaf.NO_SAMPLE, 10, 0] == 39 * (5 * MS - 25_000)


def test_busy_idle_and_unknown_are_the_whole_time() -> None:
    """On one stream, kernel time and idle time add up to the time between begin and end."""
    rows = attributed(run(training().events(600 * MS)))
    assert total_ns(rows, Measure.GPU_TIME) + total_ns(rows, Measure.GPU_IDLE) == 600 * MS


def test_explained_waits_are_marked_and_others_are_not() -> None:
    """Each call comes out once: waits marked as attributed, launches as they were."""
    program = training()
    out = calls_of(run(program.events(600 * MS)))
    assert len(out) == len(program.calls)
    is_marked = (out["flags"] & CallFlag.ATTRIBUTED) != 0
    assert (is_marked == (out["kind"] == Kind.WAIT)).all()
    assert int(find_waits(out[is_marked]).duration_ns.sum()) == total_ns(
        attributed(run(program.events(600 * MS))), Measure.GPU_WAIT
    )


def test_launches_pass_at_once_and_waits_when_they_are_explained() -> None:
    """A launch comes out with its batch; a wait before the watermark that covers it."""
    correlator = GpuCorrelator()
    correlator.feed(ExecutionsBegin(PROCESS, 0))
    launch, wait = call(1, 10 * MS), call(2, 11 * MS, 20 * MS, "cuCtxSynchronize")
    (out,) = correlator.feed(Calls(np.concatenate([launch, wait])))
    assert isinstance(out, Calls)
    assert out.rows["kind"].tolist() == [Kind.LAUNCH]
    events = []
    for now in range(ROUND, SECOND_NS, ROUND):
        events += correlator.feed(ExecutionWatermark(PROCESS, now))
        events += correlator.feed(Watermark(now))
    kinds = [type(event) for event in events if isinstance(event, Calls | Watermark)]
    assert kinds[:2] == [Calls, Watermark]


def test_watermarks_wait_for_executions_but_not_for_ever() -> None:
    """The next stage is told what is complete on both sides, and goes on without executions that do not come."""
    correlator = GpuCorrelator()
    correlator.feed(ExecutionsBegin(PROCESS, 0))
    correlator.feed(ExecutionWatermark(PROCESS, SECOND_NS))
    told = []
    for now in range(ROUND, 6 * SECOND_NS, ROUND):
        told += times_of_watermarks(correlator.feed(Watermark(now)))
        complete = max(min(now, SECOND_NS), now - GIVE_UP_NS)
        assert not told or told[-1] <= complete - GRACE_NS
    assert told[-1] >= 6 * SECOND_NS - GIVE_UP_NS - GRACE_NS - SECOND_NS
    assert told == sorted(set(told))


def test_after_the_last_process_everything_passes_again() -> None:
    """When executions end, what was held back comes out, and later events pass as they are."""
    program = training()
    events = program.events(600 * MS)
    later: list[Event] = [
        Calls(call(1, 900 * MS, 901 * MS, "cuCtxSynchronize")),
        Watermark(1000 * MS),
    ]
    correlator = GpuCorrelator()
    for event in [*events, Watermark(700 * MS), Watermark(810 * MS)]:
        correlator.feed(event)
    for event in later:
        (out,) = correlator.feed(event)
        assert out is event
    assert correlator.finish() == []


@pytest.mark.parametrize(
    ("at", "until"),
    [(90, 110), (290, 310), (350, 360)],
    ids=["began before", "ends after", "after the end"],
)
def test_waits_outside_of_the_interval_are_left_alone(at: int, until: int) -> None:
    """Of a wait that does not lie within the delivered time nothing is known: it is counted as ever."""
    events: list[Event] = [ExecutionsBegin(PROCESS, 100 * MS), Watermark(ROUND)]
    events += [ExecutionsEnd(PROCESS, 300 * MS)]
    events += [Calls(call(2, at * MS, until * MS, "cuCtxSynchronize"))]
    events += [Watermark(now) for now in range(ROUND, SECOND_NS, ROUND)]
    out = run(events)
    assert (calls_of(out)["flags"] & CallFlag.ATTRIBUTED == 0).all()
    assert total_ns(attributed(out), Measure.GPU_WAIT) == 0


def test_launches_before_the_begin_is_known_are_found() -> None:
    """Calls may be delivered before it is known that executions will be: they find theirs all the same."""
    events: list[Event] = [
        Calls(call(5, 10 * MS)),
        ExecutionsBegin(PROCESS, 5 * MS),
        Executions(
            np.concatenate(
                [launched(1, 10 * MS + 100, 10 * MS + 200), executed(1, 11 * MS, 12 * MS)]
            )
        ),
        Watermark(ROUND),
    ]
    assert values(attributed(run(events)), Measure.GPU_TIME) == {(Leaf.KERNEL, 5, 0): MS}


def test_executions_that_nobody_announced_are_told() -> None:
    """Executions without a begin have their time and launches; idle time is not claimed from them."""
    events = training().events(600 * MS, is_whole=False)
    rows = attributed(run(events))
    assert total_ns(rows, Measure.GPU_TIME) == 40 * 4 * MS
    assert total_ns(rows, Measure.GPU_IDLE) == 0


def test_executions_without_a_launch_say_why() -> None:
    """Their time is not lost: it stands under the reason, in their process."""
    rows = np.concatenate(
        [
            launched(1, 10 * MS, 11 * MS),
            executed(1, 20 * MS, 21 * MS),
            executed(2, 30 * MS, 32 * MS),
        ]
    )
    out = attributed(run([ExecutionsBegin(PROCESS, 0), Executions(rows), Watermark(SECOND_NS)]))
    out = out[out["measure"] == Measure.GPU_TIME]
    assert dict(zip(out["no_launch"].tolist(), out["value_ns"].tolist(), strict=True)) == {
        NoLaunch.NO_PROBE: MS,
        NoLaunch.NO_LAUNCH_RECORD: 2 * MS,
    }
    assert set(out["tgid"].tolist()) == {PROCESS.tgid}


def test_a_reused_pid_is_another_process() -> None:
    """Executions of a process do not find launches of an earlier one with its pid and thread."""
    again = ProcessKey(PROCESS.tgid, 999)
    first, second = Program(PROCESS), Program(again)
    first.kernel(10 * MS, 20 * MS, 21 * MS, stack=1)
    second.kernel(110 * MS, 120 * MS, 122 * MS, stack=2)
    events: list[Event] = [*first.events(100 * MS), ProcessesEnded((PROCESS,))]
    events += [ExecutionsBegin(again, 100 * MS), *second.events(300 * MS, is_whole=False)]
    assert values(attributed(run(events)), Measure.GPU_TIME) == {
        (Leaf.KERNEL, 1, 0): MS,
        (Leaf.KERNEL, 2, 0): 2 * MS,
    }


def test_a_replaced_program_is_told_before_its_successor_is_described() -> None:
    """What is held of a program that was replaced by exec comes out before the new description."""
    program = Program()
    program.kernel(10 * MS, 20 * MS, 21 * MS, stack=1)
    program.wait(11 * MS, 22 * MS)
    events = program.events(50 * MS, is_whole=False)
    correlator = GpuCorrelator()
    for event in [ExecutionsBegin(PROCESS, 0), *events, ProcessesEnded((PROCESS,))]:
        correlator.feed(event)
    described = Targets((TargetInfo(PROCESS, ()),))
    out = correlator.feed(described)
    assert out[-1] is described
    assert total_ns(attributed(out), Measure.GPU_TIME) == MS
    assert len(calls_of(out)) == 1
    assert attributed(correlator.finish()).size == 0


def test_a_process_that_is_not_captured_makes_idle_time_unknown() -> None:
    """While another process gives devices work that we do not see, nobody can say that they idle."""
    program = training()
    events = program.events(600 * MS)
    other = np.concatenate(
        [call(3, at, process=OTHER) for at in range(100 * MS, 600 * MS, 100 * MS)]
    )
    out = attributed(run([events[0], Calls(other), *events[1:]]))
    idle = Counter[Any]()
    for row in out[out["measure"] == Measure.GPU_IDLE]:
        idle[Leaf(row["leaf"])] += int(row["value_ns"])
    assert idle[Leaf.UNKNOWN_NOT_CAPTURED] > idle[Leaf.NO_SAMPLE]
    assert total_ns(out, Measure.GPU_IDLE) + total_ns(out, Measure.GPU_TIME) == 600 * MS


def test_counters_of_the_device_show_other_processes_too() -> None:
    """A process that no probe sees is known from the device's counters: for their time idle is unknown."""
    begin, *events = training(66).events(600 * MS)
    rows = np.zeros(2, DEVICE_METRIC)
    rows["time_ns"], rows["interval_ns"], rows["value"] = 300 * MS, 100 * MS, 0.5
    rows["metric"], rows["tgid"] = DeviceMetric.PROCESS_SM, (OTHER.tgid, PROCESS.tgid)
    out = attributed(run([begin, DeviceMetrics(rows), *events]))
    idle = out[(out["measure"] == Measure.GPU_IDLE) & (out["leaf"] == Leaf.UNKNOWN_NOT_CAPTURED)]
    # Of each 9 ms between 200 and 400 ms, 5; and 1 before the first kernel.
    assert abs(int(idle["value_ns"].sum()) - 200 * MS * 5 // 9 - MS) < 5 * MS


def test_counters_may_still_tell_of_a_captured_process_that_has_ended() -> None:
    """It was not another one that had worked: what was idle is known."""
    ended = Program(OTHER)
    ended.kernel(2 * MS, 3 * MS, 4 * MS, stack=1, device=1)
    begin, *events = training(66).events(600 * MS)
    late = np.zeros(1, DEVICE_METRIC)
    late["time_ns"], late["interval_ns"], late["value"] = 500 * MS, 100 * MS, 0.5
    late["metric"], late["tgid"] = DeviceMetric.PROCESS_SM, OTHER.tgid
    *before, last = events
    other_begin, *other_events = ended.events(100 * MS)
    merged = [begin, other_begin, *other_events, *before, DeviceMetrics(late), last]
    out = attributed(run(merged))
    is_idle = (out["measure"] == Measure.GPU_IDLE) & (out["device"] == 0)
    idle = out[is_idle & (out["time_ns"] > 350 * MS)]
    assert len(idle)
    assert Leaf.UNKNOWN_NOT_CAPTURED not in set(idle["leaf"].tolist())


@pytest.mark.parametrize("reason", ["ring_full", "process_ended"])
def test_idle_time_of_an_incomplete_interval_is_unknown(reason: str) -> None:
    """What was lost may have run in the gaps: from the begin on, or from where a process was cut off."""
    *events, end = training(20).events(200 * MS)
    assert isinstance(end, ExecutionsEnd)
    out = attributed(run([*events, ExecutionsEnd(PROCESS, end.time_ns, reason)]))
    idle = out[out["measure"] == Measure.GPU_IDLE]
    leaves = {Leaf(leaf) for leaf in idle["leaf"].tolist()}
    assert (Leaf.NO_SAMPLE in leaves) == (reason == "process_ended")
    assert total_ns(out, Measure.GPU_IDLE) + total_ns(out, Measure.GPU_TIME) == 200 * MS


def test_a_kernel_that_covers_gaps_of_others_leaves_none() -> None:
    """A long kernel ends after short ones on another stream: between these the device was not idle."""
    program = Program()
    program.kernel(MS, 2 * MS, 900 * MS, stream_id=8, stack=1)
    for at in range(10 * MS, 800 * MS, 10 * MS):
        program.kernel(at, at + MS, at + 2 * MS, stack=2)
    out = attributed(run(program.events(1000 * MS)))
    idle = out[out["measure"] == Measure.GPU_IDLE]
    told = {Leaf(row["leaf"]): int(row["value_ns"]) for row in idle}
    assert told == {Leaf.BEFORE_FIRST: 2 * MS, Leaf.AFTER_LAST: 100 * MS}


def test_too_much_waiting_is_decided_early() -> None:
    """With little room the oldest is decided before its time: nothing is lost, and no more is kept than allowed."""
    limits = Limits(launches=64, executions=64, history=64)
    correlator = GpuCorrelator(limits)
    program = Program()
    for at in range(0, 400 * MS, MS):
        program.kernel(at, at + 5_000, at + 500_000, stack=1)
    events = [
        e for e in program.events(SECOND_NS) if not isinstance(e, ExecutionWatermark | Watermark)
    ]
    rows = attributed(run(events, correlator))
    assert total_ns(rows, Measure.GPU_TIME) == 400 * 495_000
    assert correlator.counts.forced > 0
    assert_balanced(correlator)


def test_a_device_that_is_seconds_behind_loses_no_launch_and_is_not_called_idle() -> None:
    """Its records come when it has worked off a long queue: until then nothing is said of idle time and waits."""
    events = training().events(SECOND_NS, is_whole=False)
    first, *records = [event for event in events if isinstance(event, Executions)]
    in_time = len(first.rows[first.rows["kind"] == GpuKind.KERNEL])
    calls = [event for event in events if not isinstance(event, Executions | ExecutionWatermark)]
    late_ns = 6 * SECOND_NS
    rounds = [Watermark(now) for now in range(SECOND_NS, late_ns, ROUND)]
    correlator = GpuCorrelator()
    complete = ExecutionWatermark(PROCESS, 46 * MS)
    before: list[Event] = [ExecutionsBegin(PROCESS, 0), first, complete, *calls, *rounds]
    after: list[Event] = [*records, ExecutionWatermark(PROCESS, late_ns), Watermark(late_ns)]
    out = run([*before, *after, ExecutionsEnd(PROCESS, late_ns)], correlator)
    assert (correlator.counts.joined, correlator.counts.late) == (40, 40 - in_time)
    rows = attributed(out)
    assert values(rows, Measure.GPU_TIME) == {(Leaf.KERNEL, 10, 100): 40 * 4 * MS}
    idle = rows[(rows["measure"] == Measure.GPU_IDLE) & (rows["time_ns"] > ROUND)]
    assert set(idle["leaf"].tolist()) == {Leaf.UNKNOWN_INCOMPLETE, Leaf.AFTER_LAST}
    # From where the records end to where it was given up last: after that all of them are there, and nothing ran.
    missing = idle["value_ns"][idle["leaf"] == Leaf.UNKNOWN_INCOMPLETE]
    assert missing.sum() == 3_500 * MS - 46 * MS
    waits = calls_of(out)
    waits = waits[waits["kind"] == Kind.WAIT]
    is_explained = (waits["flags"] & CallFlag.ATTRIBUTED) != 0
    assert len(waits) == 40
    assert is_explained.tolist() == (waits["start_ns"] < 46 * MS).tolist()
    assert_balanced(correlator)


def test_held_back_launches_wait_for_what_ran() -> None:
    """An overhead record inside a launch is a wait of that launch for the kernel that ran meanwhile."""
    program = Program()
    program.kernel(MS, 2 * MS, 60 * MS, stack=1, name=100)
    program.calls.append((10 * MS, call(2, 10 * MS)))
    program.records.append((50 * MS, launched(77, 10 * MS + 100, 50 * MS)))
    full = executed(77, 11 * MS, 49 * MS, kind=GpuKind.OVERHEAD, detail=6)
    program.records += [(50 * MS, full), (61 * MS, executed(77, 60 * MS, 61 * MS, name=101))]
    rows = attributed(run(program.events(300 * MS)))
    assert values(rows, Measure.GPU_WAIT) == {(Leaf.KERNEL, 2, 100): 38 * MS}


def test_a_record_without_a_length_is_no_return() -> None:
    """Launches found by order have one: they last until the thread's next call, and may have been held back."""
    program = Program()
    program.kernel(MS, 2 * MS, 60 * MS, stack=1, name=100)
    program.calls += [(10 * MS, call(2, 10 * MS)), (50 * MS, call(3, 50 * MS))]
    full = executed(0, 11 * MS, 49 * MS, kind=GpuKind.OVERHEAD, detail=6)
    program.records += [
        (50 * MS, launched(77, 10 * MS, 10 * MS)),
        (50 * MS, full),
        (61 * MS, executed(77, 60 * MS, 61 * MS, name=101)),
    ]
    correlator = GpuCorrelator()
    rows = attributed(run(program.events(300 * MS), correlator))
    assert values(rows, Measure.GPU_WAIT) == {(Leaf.KERNEL, 2, 100): 38 * MS}
    assert not correlator.counts.uncertain


@pytest.mark.parametrize("first_ms", [10, 510, 1_510])
def test_what_a_thread_did_is_known_from_the_first_execution_on(first_ms: int) -> None:
    """Also where times before that had been decided when it came: 170 ms asleep between two kernels."""
    program, first = Program(), first_ms * MS
    for at in (first, first + 180 * MS):
        program.kernel(at - 5_000, at, at + 10 * MS, stack=1)
    asleep = call(3, first + 10 * MS, first + 180 * MS, kind=Kind.OFF_CPU)
    program.calls.append((first + 180 * MS, asleep))
    rows = attributed(run(program.events(first + SECOND_NS)))
    idle = values(rows[rows["leaf"] < Leaf.UNKNOWN_NOT_CAPTURED], Measure.GPU_IDLE)
    assert idle == {(Leaf.OFF_CPU, 3, 0): 170 * MS}


Faults = st.sampled_from(["call", "record", "execution", "again", "zero", "inverted"])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Threads that launch kernels, graphs and copies, and wait, with faults."""
    program = Program()
    for thread in (THREAD, SECOND)[: draw(st.integers(1, 2))]:
        at = draw(st.integers(1, 1000))
        for _ in range(draw(st.integers(1, 12))):
            at += draw(st.integers(10_000, 40 * MS))
            what = draw(st.sampled_from(["kernel", "graph", "wait", "copy"]))
            long = draw(st.integers(1, 30 * MS))
            if what == "wait":
                program.wait(at, at + long, thread=thread, tid=thread & 0xFF)
                at += long
                continue
            start = at + draw(st.integers(3_000, 20 * MS))
            api = {
                "kernel": "cuLaunchKernel",
                "graph": "cuGraphLaunch",
                "copy": "cuMemcpyHtoDAsync",
            }
            device = draw(st.integers(0, 1))
            program.kernel(at, start, start + long, thread=thread, api=api[what], device=device)
            if what == "graph":
                node = executed(
                    program.next_id - 1, start + long, start + 2 * long, graph_node_id=2
                )
                program.records.append((start + 2 * long, node))
                program.launches[-1] = (at, start + 2 * long)
    return program


def with_faults(program: Program, faults: Sequence[tuple[str, int]]) -> Program:
    """Some rows lost, doubled, or with wrong times."""
    for fault, which in faults:
        rows: list[Any] = program.calls if fault == "call" else program.records
        if not rows:
            continue
        place = which % len(rows)
        at, row = rows[place]
        if fault in ("call", "record", "execution"):
            del rows[place]
        elif fault == "again":
            rows.append((at, row.copy()))
        elif fault == "zero":
            rows[place][1]["start_ns"] = 0
        else:
            row = row.copy()
            row["end_ns"] = row["start_ns"] - 1
            rows[place] = (at, row)
    return program


def true_total_ns(events: Iterable[Event]) -> int:
    """Σ of the durations of different executions with times."""
    rows = executions_of(events)
    rows = rows[(rows["kind"] <= GpuKind.SET) & (rows["start_ns"] > 0)]
    rows = np.unique(rows[rows["start_ns"] <= rows["end_ns"]])
    return int((rows["end_ns"] - rows["start_ns"]).sum())


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW)
@given(programs(), st.lists(st.tuples(Faults, st.integers(0, 1000)), max_size=8))
def test_nothing_is_lost_or_counted_twice(program: Program, faults: list[tuple[str, int]]) -> None:
    """Whatever is missing, doubled or wrong: kernel time is exact, waits keep their time, the books balance."""
    events = with_faults(program, faults).events(2 * SECOND_NS)
    correlator = GpuCorrelator()
    out = run(events, correlator)
    rows = attributed(out)
    assert total_ns(rows, Measure.GPU_TIME) == true_total_ns(events)
    waited = find_waits(calls_of(events)).duration_ns.sum()
    calls = calls_of(out)
    is_marked = (calls["flags"] & CallFlag.ATTRIBUTED) != 0
    assert len(calls) == len(calls_of(events))
    assert (
        int(find_waits(calls[~is_marked]).duration_ns.sum()) + total_ns(rows, Measure.GPU_WAIT)
        == waited
    )
    assert_balanced(correlator)
    assert correlator.counts.pending == 0


@settings(max_examples=20, deadline=None, suppress_health_check=SLOW)
@given(
    programs(),
    st.lists(st.tuples(Faults, st.integers(0, 1000)), max_size=4),
    st.lists(st.integers(1, 9), max_size=40),
)
def test_batches_make_no_difference(
    program: Program, faults: list[tuple[str, int]], sizes: list[int]
) -> None:
    """The same rows in other batches give the same attributions, calls and watermarks."""
    events = with_faults(program, faults).events(3 * SECOND_NS // 2)
    out, again = run(events), run(rebatched(events, sizes))
    for first, second in ((attributed(out), attributed(again)), (calls_of(out), calls_of(again))):
        assert as_set(first) == as_set(second)
    assert times_of_watermarks(out) == times_of_watermarks(again)


@settings(max_examples=20, deadline=None, suppress_health_check=SLOW)
@given(programs(), st.randoms(use_true_random=False))
def test_order_within_a_round_makes_no_difference(program: Program, random: Any) -> None:
    """Executions before their launches, records before probes: what comes out is the same."""
    events = program.events(2 * SECOND_NS)
    shuffled: list[Event] = []
    for event in events:
        if not isinstance(event, Calls | Executions):
            shuffled.append(event)
            continue
        places = list(range(len(event.rows)))
        random.shuffle(places)
        is_second = bool(shuffled) and isinstance(shuffled[-1], Calls | Executions)
        place = len(shuffled) - (is_second and random.random() < 0.5)
        shuffled.insert(place, type(event)(event.rows[places]))
    out, again = attributed(run(events)), attributed(run(shuffled))
    assert as_set(out) == as_set(again)
