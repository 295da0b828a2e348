"""What the CPU did while a device had nothing to do: all of it adds up to the idle time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.coverage import UNKNOWN, UnknownArray
from otel_gpuflame.correlate.gpu.idle import Idle, explain_idle
from otel_gpuflame.correlate.gpu.samples import NOTHING, Carried
from otel_gpuflame.correlate.gpu.timeline import busy_intervals, find_gaps
from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.events.attributions import Leaf, Measure, NoLaunch
from otel_gpuflame.events.wire import CallFlag, Kind
from tests.unit.correlate.gpu.scene import (
    MAIN,
    OTHER_PROCESS,
    PROCESS,
    SECOND,
    A,
    B,
    Scene,
    by_stack,
)

MS = 1_000_000
PERIOD = 1_000_000_000 // CPU_SAMPLES_HZ
NOT_CAPTURED, INCOMPLETE = Leaf.UNKNOWN_NOT_CAPTURED, Leaf.UNKNOWN_INCOMPLETE
BEFORE, AFTER = Leaf.BEFORE_FIRST, Leaf.AFTER_LAST
NO_SAMPLE, ON_CPU, OFF_CPU, CALL = Leaf.NO_SAMPLE, Leaf.ON_CPU, Leaf.OFF_CPU, Leaf.DRIVER_CALL
LATENCY = Leaf.LAUNCH_LATENCY


def unknown(*rows: tuple[int, int, int, Leaf]) -> UnknownArray:
    """Of (device, start, end, reason)."""
    return np.array([(start, end, device, leaf) for device, start, end, leaf in rows], UNKNOWN)


def explain(
    scene: Scene,
    start: int,
    end: int,
    missing: UnknownArray | None = None,
    *,
    devices: tuple[int, ...] = (0,),
    carried: Carried = NOTHING,
    is_from_start: bool = False,
) -> Idle:
    """Idle times of the devices in a window."""
    rows = scene.joined()
    gaps, _ = find_gaps(busy_intervals(rows), np.array(devices, np.uint32), start, end)
    losses = unknown() if missing is None else missing
    return explain_idle(gaps, rows, scene.calls(), losses, carried, is_from_start=is_from_start)


def _gap(scene: Scene, length: int = 10 * MS) -> None:
    """1 until 100, then a gap, then 2, launched by the main thread under stack 2."""
    scene.run(1, 10, 20, 100)
    scene.run(2, 100 + length - 5, 100 + length, 110 + length)


def test_without_any_knowledge_it_is_the_launch_that_ended_it() -> None:
    """A gap in which nothing is known of the thread stands under the launch that ended it."""
    scene = Scene()
    _gap(scene)
    found = explain(scene, 20, 100 + 10 * MS)
    assert by_stack(found.rows) == {(NO_SAMPLE, 2): 10 * MS}
    (row,) = found.rows
    assert (row["measure"], row["device"], row["tid"], row["time_ns"]) == (
        Measure.GPU_IDLE,
        0,
        MAIN,
        100,
    )
    assert (found.idle_ns, found.unknown_ns) == (10 * MS, 0)


@pytest.mark.parametrize(
    ("begin", "end", "idle"),
    [(50, 80, 0), (50, 150, 50), (150, 250, 100), (1_000, 1_200, 100), (1_100, 1_200, 0)],
)
@pytest.mark.parametrize(
    ("kind", "leaf"), [(Kind.OFF_CPU, OFF_CPU), (Kind.DRIVER, CALL), (Kind.WAIT, CALL)]
)
def test_what_overlaps_a_gap_counts_by_its_overlap(
    begin: int, end: int, idle: int, kind: Kind, leaf: Leaf
) -> None:
    """Times off the CPU, system calls and library calls count as far as they lie in the gap from 100 to 1,100."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.thread(kind, begin, end, stack_hash=8)
    found = by_stack(explain(scene, 20, 1_100).rows)
    expected = {(leaf, 8): idle, (NO_SAMPLE, 2): 1_000 - idle}
    assert found == {key: value for key, value in expected.items() if value}


@pytest.mark.parametrize(
    "fields",
    [
        {"tid": SECOND},
        {"tgid": OTHER_PROCESS},
        {"flags": 0},
        {"end_ns": 150},
        {"end_ns": 200},
    ],
)
def test_what_other_threads_did_does_not_count(fields: dict[str, Any]) -> None:
    """Nor do calls whose end is not known, or lies before their beginning."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.thread(Kind.OFF_CPU, 200, 300, stack_hash=8)
    for name, value in fields.items():
        scene.rows[-1][name] = value
    assert by_stack(explain(scene, 20, 1_100).rows) == {(NO_SAMPLE, 2): 1_000}


def test_inner_goes_before_outer() -> None:
    """Off the CPU in a system call in a call of the library: each nanosecond counts once, for the innermost."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.call("cuLaunchKernel", 200, 600, stack_hash=7)
    scene.thread(Kind.DRIVER, 300, 500, stack_hash=8, api=300)
    scene.thread(Kind.OFF_CPU, 350, 450, stack_hash=9)
    scene.thread(Kind.CPU_SAMPLE, 320, stack_hash=6)
    found = explain(scene, 20, 1_100).rows
    assert by_stack(found) == {
        (CALL, 7): 200,
        (CALL, 8): 100,
        (OFF_CPU, 9): 100,
        (NO_SAMPLE, 2): 600,
    }
    assert {int(row["stack_hash"][0]): int(row["leaf_api"]) for row in found} == {
        7: apis.BY_NAME["cuLaunchKernel"].id,
        8: 300,
        9: 0,
        2: 0,
    }


def test_who_waits_for_the_device_waits_also_off_the_cpu() -> None:
    """Whether a thread sleeps or spins in a call that waits is a setting of the context: no other reason."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.call("cuStreamSynchronize", 50, 600, stack_hash=7)
    scene.thread(Kind.DRIVER, 300, 500, stack_hash=8, api=300)
    scene.thread(Kind.OFF_CPU, 60, 700, stack_hash=9)
    found = explain(scene, 20, 1_100).rows
    assert by_stack(found) == {(CALL, 7): 500, (OFF_CPU, 9): 100, (NO_SAMPLE, 2): 400}


def test_times_that_overlap_wrongly_still_count_once() -> None:
    """Where one thread was in two calls of a kind at once, Σ is exact all the same."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.thread(Kind.OFF_CPU, 200, 600, stack_hash=7)
    scene.thread(Kind.OFF_CPU, 300, 400, stack_hash=8)
    scene.thread(Kind.OFF_CPU, 300, 700, stack_hash=9)
    rows = explain(scene, 20, 1_100).rows
    assert int(rows["value_ns"].sum()) == 1_000


def test_one_time_off_the_cpu_through_several_gaps() -> None:
    """It counts in each gap, and not while the device was busy."""
    scene = Scene()
    for name in range(1, 5):
        scene.run(name, 10, 100 * name, 100 * name + 50)
    scene.thread(Kind.OFF_CPU, 120, 420, stack_hash=8)
    assert by_stack(explain(scene, 100, 450).rows) == {(OFF_CPU, 8): 150}


def _gaps(found: Idle) -> dict[int, float]:
    """Of how many gaps it is, by stack."""
    gaps: Counter[int] = Counter()
    for row in found.rows:
        gaps[int(row["stack_hash"][0])] += float(row["gaps"])
    return dict(gaps)


def test_gaps_are_counted_by_the_part_of_each() -> None:
    """Three of 50 ns asleep, of one of them only 20 ns; of the rest nothing is known."""
    scene = Scene()
    for name in range(1, 6):
        scene.run(name, 10, 100 * name, 100 * name + 50, stack_hash=9)
    scene.thread(Kind.OFF_CPU, 120, 370, stack_hash=8)
    assert _gaps(explain(scene, 100, 550)) == pytest.approx({8: 2.4, 9: 1.6}, rel=1e-3)


@pytest.mark.parametrize(("steps", "length"), [(100, 5 * MS), (1, 500 * MS)])
def test_a_sample_is_of_as_many_gaps_as_it_stands_for(steps: int, length: int) -> None:
    """Many gaps of 5 ms, of which every second one has a sample, and one with as many samples."""
    scene = Scene()
    for name in range(steps + 1):
        at = name * (length + MS)
        scene.run(name + 1, at, at, at + MS, stack_hash=99)
    for at in range(MS + 1, steps * (length + MS), PERIOD):
        is_busy = at % (length + MS) < MS
        scene.thread(Kind.CPU_SAMPLE, at, stack_hash=6 if is_busy else 7)
    found = explain(scene, 0, steps * (length + MS))
    assert _gaps(found) == pytest.approx({7: steps}, rel=0.01)


def test_a_sample_in_a_tiny_gap_is_not_of_endless_ones() -> None:
    """20 ms are of 20 million gaps of 1 ns: the column has 16 bits."""
    scene = Scene()
    scene.run(1, 0, 0, 100)
    scene.run(2, 0, 101, 200)
    scene.run(3, 20 * MS, 200 + 20 * MS, 300 + 20 * MS, stack_hash=9)
    scene.thread(Kind.CPU_SAMPLE, 100, stack_hash=7)
    gaps = _gaps(explain(scene, 0, 200 + 20 * MS))
    assert gaps[7] == 10_000


def test_samples_share_what_is_left() -> None:
    """Samples in a gap stand for the time that nothing else explains, equally, to the nanosecond."""
    scene = Scene()
    _gap(scene, 30 * MS + 1)
    scene.thread(Kind.OFF_CPU, 5 * MS, 10 * MS, stack_hash=9)
    for at, stack in ((1 * MS, 7), (12 * MS, 7), (22 * MS, 8)):
        scene.thread(Kind.CPU_SAMPLE, at, stack_hash=stack)
    scene.thread(Kind.CPU_SAMPLE, 50, stack_hash=6)
    scene.thread(Kind.CPU_SAMPLE, 31 * MS, stack_hash=6)
    scene.thread(Kind.CPU_SAMPLE, 3 * MS, stack_hash=6, tid=SECOND)
    found = by_stack(explain(scene, 20, 100 + 30 * MS + 1).rows)
    left = 25 * MS + 1
    assert found == {
        (OFF_CPU, 9): 5 * MS,
        (ON_CPU, 7): 2 * (left // 3) + 1,
        (ON_CPU, 8): left // 3,
    } or (found == {(OFF_CPU, 9): 5 * MS, (ON_CPU, 7): 2 * (left // 3) + 2, (ON_CPU, 8): left // 3})
    assert sum(found.values()) == 30 * MS + 1


def test_a_sample_stands_for_two_periods_at_most() -> None:
    """What is beyond that is not known, and stands under the launch that ended the gap."""
    scene = Scene()
    _gap(scene, 50 * MS)
    scene.thread(Kind.CPU_SAMPLE, 1 * MS, stack_hash=7)
    most = 2 * 1_000_000_000 // CPU_SAMPLES_HZ
    assert by_stack(explain(scene, 20, 100 + 50 * MS).rows) == {
        (ON_CPU, 7): most,
        (NO_SAMPLE, 2): 50 * MS - most,
    }


def test_samples_stand_for_all_gaps_of_their_thread() -> None:
    """Gaps shorter than the time between samples: few have one, and those tell about all."""
    scene = Scene()
    step = 6 * MS
    for name in range(100):
        start = name * step + 5 * MS
        scene.run(name + 1, start - 5, start, (name + 1) * step, stack_hash=99)
    for at in range(0, 100 * step, PERIOD):
        is_busy = at % step >= 5 * MS
        scene.thread(Kind.CPU_SAMPLE, at, stack_hash=6 if is_busy else 7)
    assert by_stack(explain(scene, 6 * MS, 100 * step).rows) == {(ON_CPU, 7): 99 * 5 * MS}


def _steps(scene: Scene, steps: int, tid: int = MAIN, stack: int = 99) -> None:
    """A gap of 1 ms every 10 ms, that ends with each step."""
    for name in range(steps + 1):
        at = 10 * MS * name
        scene.run(name + 1, at + 1 * MS - 5, at + 1 * MS, at + 10 * MS, stack_hash=stack, tid=tid)


def test_samples_stand_for_gaps_of_the_next_second() -> None:
    """Samples that the gaps around them do not use up tell about later gaps without samples."""
    scene = Scene()
    _steps(scene, 30)
    for step in range(5):
        scene.thread(Kind.CPU_SAMPLE, 10 * MS * (step + 1) + 100, stack_hash=7)
    first = explain(scene, 10 * MS, 60 * MS)
    assert by_stack(first.rows) == {(ON_CPU, 7): 5 * MS}
    second = explain(scene, 60 * MS, 160 * MS, carried=first.carried)
    assert by_stack(second.rows) == {(ON_CPU, 7): 10 * MS}
    assert int(second.carried.left_ns.sum()) == 5 * (2_000 * MS // CPU_SAMPLES_HZ) - 15 * MS
    times = second.rows["time_ns"]
    assert ((times >= 60 * MS) & (times < 160 * MS)).all()


def test_samples_that_are_used_up_tell_no_more() -> None:
    """What is beyond what they may stand for stands under the launch."""
    scene = Scene()
    _steps(scene, 30)
    scene.thread(Kind.CPU_SAMPLE, 10 * MS + 100, stack_hash=7)
    most = 2_000 * MS // CPU_SAMPLES_HZ
    first = explain(scene, 10 * MS, 20 * MS)
    second = explain(scene, 20 * MS, 300 * MS, carried=first.carried)
    assert by_stack(first.rows) == {(ON_CPU, 7): 1 * MS}
    assert by_stack(second.rows) == {(ON_CPU, 7): most - 1 * MS, (NO_SAMPLE, 99): 29 * MS - most}
    assert not len(second.carried.calls)


@pytest.mark.parametrize(("after_ms", "tells"), [(900, True), (1_100, False)])
def test_old_samples_tell_no_more(after_ms: int, tells: bool) -> None:
    """A second later the program may do something else."""
    scene = Scene()
    _steps(scene, 130)
    scene.thread(Kind.CPU_SAMPLE, 10 * MS + 100, stack_hash=7)
    carried = explain(scene, 10 * MS, 20 * MS).carried
    between = explain(scene, after_ms * MS - 9 * MS, after_ms * MS - 8 * MS, carried=carried)
    later = explain(scene, after_ms * MS, (after_ms + 10) * MS, carried=carried)
    assert not len(between.rows)
    assert (len(later.carried.calls) > 0) == tells


def test_samples_of_another_thread_or_device_do_not_tell() -> None:
    """What a thread did on one device says nothing of another's gaps."""
    scene = Scene()
    _steps(scene, 5)
    scene.thread(Kind.CPU_SAMPLE, 10 * MS + 100, stack_hash=7)
    carried = explain(scene, 10 * MS, 20 * MS).carried
    other = Scene()
    _steps(other, 5, tid=SECOND)
    found = explain(other, 20 * MS, 30 * MS, carried=carried)
    assert by_stack(found.rows) == {(NO_SAMPLE, 99): 1 * MS}
    assert len(found.carried.calls) == 1
    on_other = carried._replace(device=carried.device + 1)
    found = explain(scene, 20 * MS, 30 * MS, carried=on_other)
    assert by_stack(found.rows) == {(NO_SAMPLE, 99): 1 * MS}


def test_what_a_thread_does_after_its_launch_lets_no_device_idle() -> None:
    """Kernels that were launched early are a little apart; meanwhile their thread was asleep."""
    scene = Scene()
    for name in range(1, 11):
        scene.run(name, name * 100, 10 * MS * name, 10 * MS * name + 9 * MS, stack_hash=9)
    scene.thread(Kind.OFF_CPU, 1 * MS, 200 * MS, stack_hash=8)
    found = explain(scene, 10 * MS, 109 * MS)
    assert by_stack(found.rows) == {(LATENCY, 9): 9 * MS}
    assert found.idle_ns == 9 * MS
    assert not _gaps(found)[9]


def test_a_gap_is_the_threads_until_it_has_launched() -> None:
    """Then the work waited for another device: launches take 50 µs at most until it begins."""
    scene = Scene()
    scene.run(1, 10, 20, 100)
    scene.run(2, 4 * MS, 10 * MS + 100, 11 * MS, stack_hash=9)
    scene.thread(Kind.OFF_CPU, 1 * MS, 3 * MS, stack_hash=8)
    scene.thread(Kind.OFF_CPU, 5 * MS, 9 * MS, stack_hash=8)
    took = 4 * MS + 50_000
    assert by_stack(explain(scene, 20, 10 * MS + 100).rows) == {
        (OFF_CPU, 8): 2 * MS,
        (NO_SAMPLE, 9): took - 100 - 2 * MS,
        (LATENCY, 9): 10 * MS + 100 - took,
    }


def test_launches_that_are_on_their_way_are_the_threads() -> None:
    """A launch takes 40 µs here, and there is one every 20 µs: the thread is too slow, and not ahead."""
    scene = Scene()
    for name in range(1, 11):
        start = 20_000 * name + 100_000
        scene.run(name, start - 40_000, start, start + 4_000, stack_hash=9)
    assert by_stack(explain(scene, 120_000, 300_000).rows) == {(NO_SAMPLE, 9): 9 * 16_000}


def test_a_call_that_goes_on_has_not_launched_yet() -> None:
    """A copy from pageable memory is prepared by the thread, inside of the call."""
    scene = Scene()
    scene.run(1, 10, 20, 100)
    fields = {"launch_end_ns": 11 * MS, "flags": CallFlag.RETURNED, "api": "cuMemcpyHtoDAsync"}
    scene.run(2, 4 * MS, 10 * MS, 11 * MS, stack_hash=9, **fields)
    scene.call("cuMemcpyHtoDAsync", 4 * MS, 11 * MS, stack_hash=9)
    found = by_stack(explain(scene, 20, 10 * MS).rows)
    assert found == {(NO_SAMPLE, 9): 4 * MS - 100, (CALL, 9): 6 * MS}


def test_gaps_within_a_graph_are_one_row() -> None:
    """What the thread of a graph launch did between its nodes is one sum, however many nodes there are."""
    scene = Scene()
    for name in range(1, 101):
        scene.run(name, 10, 10 * name + 10, 10 * name + 15, api="cuGraphLaunch", stack_hash=9)
    scene.run(101, 1_100, 1_110, 1_120, stack_hash=8)
    (between, after) = explain(scene, 20, 1_120).rows
    assert (between["value_ns"], int(between["stack_hash"][0]), between["time_ns"]) == (495, 9, 25)
    assert (after["value_ns"], int(after["stack_hash"][0])) == (95, 8)


def test_gaps_that_different_threads_end() -> None:
    """Each thread's samples stand for the gaps that it ended."""
    scene = Scene()
    scene.run(1, 10, 20, 100)
    scene.run(2, 1_090, 1_100, 1_200)
    scene.run(3, 2_190, 2_200, 2_300, tid=SECOND)
    for tid, stack in ((MAIN, 7), (SECOND, 8)):
        for at in (500, 1_500):
            scene.thread(Kind.CPU_SAMPLE, at, stack_hash=stack, tid=tid)
    assert by_stack(explain(scene, 20, 2_300).rows) == {(ON_CPU, 7): 1_000, (ON_CPU, 8): 1_000}


def test_devices_have_their_own_idle_times() -> None:
    """One thread that serves two devices explains the gaps of both."""
    scene = Scene()
    for device, stream in ((0, A), (1, B)):
        scene.run(10 * device + 1, 10, 20, 100, device=device, stream=stream)
        scene.run(10 * device + 2, 90, 1_100 + device, 1_200, device=device, stream=stream)
    scene.thread(Kind.CPU_SAMPLE, 500, stack_hash=7)
    rows = explain(scene, 20, 1_200, devices=(0, 1)).rows
    assert {int(row["device"]): int(row["value_ns"]) for row in rows} == {0: 1_000, 1: 1_001}
    assert set(by_stack(rows)) == {(ON_CPU, 7)}


def test_a_gap_that_an_unknown_launch_ended() -> None:
    """It says why there is no stack."""
    scene = Scene()
    scene.run(1, 10, 20, 100)
    scene.run(2, 0, 1_100, 1_200, no_launch=NoLaunch.NO_PROBE)
    scene.thread(Kind.CPU_SAMPLE, 500, stack_hash=7)
    (row,) = explain(scene, 20, 1_200).rows
    assert (row["leaf"], row["no_launch"], row["value_ns"]) == (NO_SAMPLE, NoLaunch.NO_PROBE, 1_000)
    assert (row["tgid"], row["stack_hash"].tolist()) == (PROCESS, [0, 0])


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([], {(NO_SAMPLE, 2): 1_000}),
        ([(0, 0, 2_000, NOT_CAPTURED)], {(NOT_CAPTURED, 0): 1_000}),
        ([(0, 0, 2_000, INCOMPLETE)], {(INCOMPLETE, 0): 1_000}),
        ([(1, 0, 2_000, INCOMPLETE)], {(NO_SAMPLE, 2): 1_000}),
        ([(0, 0, 300, NOT_CAPTURED)], {(NOT_CAPTURED, 0): 200, (NO_SAMPLE, 2): 800}),
        ([(0, 300, 400, NOT_CAPTURED)], {(NOT_CAPTURED, 0): 100, (NO_SAMPLE, 2): 900}),
        ([(0, 300, 300, NOT_CAPTURED), (0, 400, 300, INCOMPLETE)], {(NO_SAMPLE, 2): 1_000}),
        (
            [(0, 300, 500, INCOMPLETE), (0, 400, 600, NOT_CAPTURED), (0, 550, 700, INCOMPLETE)],
            {(INCOMPLETE, 0): 200, (NOT_CAPTURED, 0): 200, (NO_SAMPLE, 2): 600},
        ),
    ],
)
def test_what_was_not_captured_is_unknown(
    missing: list[tuple[int, int, int, Leaf]], expected: dict[tuple[Leaf, int], int]
) -> None:
    """A gap from 100 to 1,100 is idle only while everything on the device was captured."""
    scene = Scene()
    _gap(scene, 1_000)
    found = explain(scene, 20, 1_100, unknown(*missing))
    assert by_stack(found.rows) == expected
    assert found.idle_ns + found.unknown_ns == 1_000


def test_samples_where_it_is_unknown_do_not_count() -> None:
    """They would tell about time that may not have been idle."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.thread(Kind.CPU_SAMPLE, 200, stack_hash=7)
    scene.thread(Kind.OFF_CPU, 250, 350, stack_hash=8)
    found = explain(scene, 20, 1_100, unknown((0, 100, 300, NOT_CAPTURED)))
    assert by_stack(found.rows) == {(NOT_CAPTURED, 0): 200, (OFF_CPU, 8): 50, (NO_SAMPLE, 2): 750}


@pytest.mark.parametrize(
    ("is_from_start", "missing", "edges"),
    [
        (False, [], {NOT_CAPTURED: 20, AFTER: 890}),
        (True, [], {BEFORE: 20, AFTER: 890}),
        (True, [(0, 0, 10, NOT_CAPTURED)], {NOT_CAPTURED: 10, BEFORE: 10, AFTER: 890}),
        (True, [(0, 15, 20, INCOMPLETE)], {INCOMPLETE: 5, BEFORE: 15, AFTER: 890}),
        (False, [(0, 15, 20, INCOMPLETE)], {NOT_CAPTURED: 20, AFTER: 890}),
        (True, [(0, 1_500, 3_000, INCOMPLETE)], {BEFORE: 20, AFTER: 390, INCOMPLETE: 500}),
        (True, [(0, 1_500, 3_000, NOT_CAPTURED)], {BEFORE: 20, AFTER: 390, NOT_CAPTURED: 500}),
    ],
)
def test_edges_of_a_capture_are_nobodys(
    is_from_start: bool, missing: list[tuple[int, int, int, Leaf]], edges: dict[Leaf, int]
) -> None:
    """Before the first execution something may have run, but for programs that are known from their start.

    What follows the last one has no end that is known. Records are missing only where they are.
    """
    scene = Scene()
    _gap(scene, 1_000)
    found = explain(scene, 0, 2_000, unknown(*missing), is_from_start=is_from_start)
    expected = {(leaf, 0): ns for leaf, ns in edges.items()}
    assert by_stack(found.rows) == expected | {(NO_SAMPLE, 2): 1_000}


def test_gaps_that_last_longer_than_a_window() -> None:
    """Windows side by side have parts of one gap, and the same thread explains both."""
    scene = Scene()
    _gap(scene, 1_000)
    scene.thread(Kind.OFF_CPU, 200, 800, stack_hash=8)
    first, second = explain(scene, 20, 500), explain(scene, 500, 1_100)
    assert by_stack(first.rows) == {(OFF_CPU, 8): 300, (NO_SAMPLE, 2): 100}
    assert by_stack(second.rows) == {(OFF_CPU, 8): 300, (NO_SAMPLE, 2): 300}
    for found, start, end in ((first, 20, 500), (second, 500, 1_100)):
        times = found.rows["time_ns"]
        assert ((times >= start) & (times < end)).all()


def test_hours_of_idle_are_split_exactly() -> None:
    """Products of such times do not fit 64 bits."""
    scene = Scene()
    hour = 3_600_000 * MS
    scene.run(1, 0, 1, 2)
    for name, start in ((2, hour + 7), (3, 2 * hour + 11), (4, 5 * hour + 13)):
        scene.run(name, start, start, start + 1)
    scene.thread(Kind.CPU_SAMPLE, 100, stack_hash=9)
    found = explain(scene, 1, 5 * hour + 13)
    assert int(found.rows["value_ns"].sum()) == found.idle_ns == 5 * hour + 13 - 4
    assert by_stack(found.rows)[ON_CPU, 9] == 2_000 * MS // CPU_SAMPLES_HZ


runs = st.tuples(st.integers(0, 1), st.integers(0, 400), st.integers(0, 40), st.integers(0, 2))
calls = st.tuples(
    st.sampled_from([Kind.CPU_SAMPLE, Kind.OFF_CPU, Kind.DRIVER, Kind.WAIT]),
    st.integers(0, 400),
    st.integers(-5, 90),
    st.integers(0, 2),
)
gone = st.tuples(
    st.integers(0, 1),
    st.integers(0, 400),
    st.integers(0, 90),
    st.sampled_from([NOT_CAPTURED, INCOMPLETE]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(runs, max_size=12),
    st.lists(calls, max_size=12),
    st.lists(gone, max_size=4),
    st.integers(0, 200),
    st.integers(0, 250),
)
def test_busy_idle_and_unknown_are_the_window(
    executions: list[tuple[int, int, int, int]],
    others: list[tuple[Kind, int, int, int]],
    missing: list[tuple[int, int, int, Leaf]],
    start: int,
    length: int,
) -> None:
    """For any executions, calls and losses: busy + idle + unknown = window, for each device, to the nanosecond."""
    scene = Scene()
    for name, (device, at, lasts, thread) in enumerate(executions, start=1):
        fields: dict[str, Any] = (
            {"no_launch": NoLaunch.NO_PROBE} if thread == 2 else {"tid": MAIN + thread}
        )
        scene.run(name, max(at - 5, 0), at, at + lasts, device=device, **fields)
    for kind, at, lasts, thread in others:
        scene.thread(
            kind, at, None if kind is Kind.CPU_SAMPLE else max(at + lasts, 0), tid=MAIN + thread
        )
    losses = unknown(*((device, at, at + lasts, leaf) for device, at, lasts, leaf in missing))
    rows = scene.joined()
    devices = np.array([0, 1], np.uint32)
    before, _ = find_gaps(busy_intervals(rows), devices, 0, start)
    carried = explain_idle(before, rows, scene.calls(), losses).carried
    gaps, busy_ns = find_gaps(busy_intervals(rows), devices, start, start + length)
    found = explain_idle(gaps, rows, scene.calls(), losses, carried)
    assert (found.carried.left_ns > 0).all()
    values: Counter[int] = Counter()
    for row in found.rows:
        assert row["value_ns"] > 0
        assert start <= row["time_ns"] < start + length
        values[int(row["device"])] += int(row["value_ns"])
    for device in (0, 1):
        assert busy_ns[device] + values[device] == length
    is_unknown = np.isin(found.rows["leaf"], [NOT_CAPTURED, INCOMPLETE, BEFORE, AFTER])
    assert int(found.rows["value_ns"][is_unknown].sum()) == found.unknown_ns


def test_no_gaps() -> None:
    """A device that was always busy, and none at all, have no idle time."""
    scene = Scene()
    scene.run(1, 10, 20, 100)
    assert not len(explain(scene, 20, 100).rows)
    assert not len(explain(Scene(), 20, 100, devices=()).rows)
