"""Launches that are held back are waits, under the launch that was held back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.backpressure import HeldBack, explain_backpressure, long_launches
from otel_gpuflame.correlate.waits import ASYNC_COPY_WAITS_FROM_NS, WaitMode
from otel_gpuflame.events.attributions import Leaf, Measure, NoLaunch
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CALL, CallFlag
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.scene import (
    MAIN,
    OTHER_PROCESS,
    PROCESS,
    SECOND,
    A,
    B,
    Scene,
    by_leaf,
    by_stack,
    record,
)

KERNEL, FULL = Leaf.KERNEL, Leaf.QUEUE_FULL


def full(start: int, end: int, **fields: Any) -> ExecutionArray:
    """CUPTI says that the command buffer was full."""
    return record(GpuKind.OVERHEAD, 6, start, end, **fields)


def explain(scene: Scene, *overhead: ExecutionArray) -> HeldBack:
    """The launches of a scene that were held back."""
    rows = np.concatenate([np.zeros(0, EXECUTION), *overhead])
    known = scene.arranged()
    return explain_backpressure(rows, _launches(scene), known.work, known.table)


def _launches(scene: Scene) -> CallArray:
    """The calls that executions of the scene were launched by."""
    joined = scene.joined()
    calls = np.zeros(len(joined), CALL)
    for name in ("process_start_ns", "tgid", "tid", "stream", "stack_hash", "api", "flags"):
        calls[name] = joined[name]
    calls["start_ns"], calls["end_ns"] = joined["launch_start_ns"], joined["launch_end_ns"]
    return calls


def _held_back(scene: Scene) -> None:
    """1 runs until 130, 2 from 140 to 300; the launch of 3 takes from 100 to 200."""
    scene.run(1, 10, 20, 130, stream=A, launch_end_ns=15)
    scene.run(2, 20, 140, 300, stream=A, launch_end_ns=25)
    scene.run(3, 100, 310, 400, stream=A, launch_end_ns=200)


def test_what_ran_meanwhile_is_waited_for() -> None:
    """The time of the record is a wait under the launch, for what its stream did meanwhile."""
    scene = Scene()
    _held_back(scene)
    found = explain(scene, full(110, 190))
    assert by_leaf(found.rows) == {(KERNEL, 1): 20, (KERNEL, 2): 50, (FULL, 0): 10}
    assert set(by_stack(found.rows)) == {(KERNEL, 3), (FULL, 3)}
    assert set(found.rows["measure"].tolist()) == {Measure.GPU_WAIT}
    assert set(found.rows["mode"].tolist()) == {WaitMode.SPIN}
    assert (found.ambiguous, found.without_launch, found.inside_waits) == (0, 0, 0)


def test_where_nothing_ran_the_queue_was_full() -> None:
    """Work of another stream is not what the launch waited for, as far as is known."""
    scene = Scene()
    scene.run(1, 10, 20, 300, stream=B, launch_end_ns=15)
    scene.run(3, 100, 310, 400, stream=A, launch_end_ns=200)
    assert by_leaf(explain(scene, full(110, 190)).rows) == {(FULL, 0): 80}


def test_several_records_in_one_launch() -> None:
    """Each record has its own time."""
    scene = Scene()
    _held_back(scene)
    found = explain(scene, full(110, 120), full(150, 155))
    assert by_leaf(found.rows) == {(KERNEL, 1): 10, (KERNEL, 2): 5}


@pytest.mark.parametrize(
    "other",
    [
        full(99, 150),
        full(150, 201),
        full(300, 310),
        full(110, 190, tgid=OTHER_PROCESS, process_start_ns=OTHER_PROCESS),
    ],
)
def test_records_inside_no_launch_are_counted(other: ExecutionArray) -> None:
    """A record that lies inside no launch of its process explains nothing, and is counted."""
    scene = Scene()
    _held_back(scene)
    found = explain(scene, other)
    assert (len(found.rows), found.without_launch) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        record(GpuKind.OVERHEAD, 1, 110, 190),
        record(GpuKind.SYNC, 6, 110, 190),
        full(110, 110),
        full(190, 110),
    ],
)
def test_other_records_say_nothing(other: ExecutionArray) -> None:
    """Other overheads, synchronisations and records without a duration are none of our business."""
    scene = Scene()
    _held_back(scene)
    found = explain(scene, other)
    assert (len(found.rows), found.without_launch, found.ambiguous) == (0, 0, 0)


def test_of_two_threads_the_later_launch_was_held_back() -> None:
    """Where launches of two threads contain the record it goes to the later one, and is counted."""
    scene = Scene()
    _held_back(scene)
    scene.run(4, 90, 410, 500, stream=B, tid=SECOND, launch_end_ns=400)
    scene.run(5, 105, 410, 500, stream=B, tid=102, launch_end_ns=108)
    found = explain(scene, full(110, 190))
    assert set(by_stack(found.rows)) == {(KERNEL, 3), (FULL, 3)}
    assert (found.ambiguous, found.without_launch) == (1, 0)


def test_a_thread_whose_last_launch_was_long_ago_is_not_in_it() -> None:
    """Its return was not seen, so that it may be inside: it is no reason to doubt."""
    scene = Scene()
    scene.run(4, 90, 410, 500, stream=B, tid=SECOND, launch_end_ns=2**62)
    scene.run(3, 2_000_090, 2_000_310, 2_000_400, stream=A, launch_end_ns=2_000_200)
    found = explain(scene, full(2_000_110, 2_000_190))
    assert set(by_stack(found.rows)) == {(FULL, 3)}
    assert (found.ambiguous, found.without_launch) == (0, 0)


def _calls(*calls: tuple[str, int, int, int]) -> CallArray:
    """Of (API, thread, start, end or 0)."""
    scene = Scene()
    for api, tid, start, end in calls:
        scene.call(api, start, end or None, tid=tid)
    return scene.calls()


@pytest.mark.parametrize(
    ("calls", "returned", "launches"),
    [
        # Start and end of launches that last 50 ns at least.
        ([("cuLaunchKernel", 1, 100, 0)], [0], [(100, 2**63)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuEventRecord", 1, 160, 0)], [0, 0], [(100, 160)]),
        ([("cuEventRecord", 1, 160, 0), ("cuLaunchKernel", 1, 100, 0)], [0, 0], [(100, 160)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuEventRecord", 2, 110, 0)], [0, 0], [(100, 2**63)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuLaunchKernel", 1, 149, 0)], [0, 200], [(149, 200)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuEventRecord", 1, 190, 0)], [170, 0], [(100, 170)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuEventRecord", 1, 190, 0)], [110, 0], []),
        ([("cuMemcpyHtoDAsync", 1, 100, 180)], [170], [(100, 180)]),
        ([("cuStreamSynchronize", 1, 100, 180)], [0], []),
        ([("cuLaunchKernel", 1, 100, 0), ("cuLaunchKernel", 1, 100, 0)], [170, 0], [(100, 170)]),
        ([("cuLaunchKernel", 1, 100, 0), ("cuLaunchKernel", 1, 100, 0)], [0, 170], [(100, 170)]),
        ([], [], []),
    ],
)
def test_how_long_launches_take(
    calls: list[tuple[str, int, int, int]], returned: list[int], launches: list[tuple[int, int]]
) -> None:
    """Until their return where it is known, else until the thread's next call at most."""
    found = long_launches(_calls(*calls), np.array(returned, np.int64), 50)
    assert list(zip(found["start_ns"].tolist(), found["end_ns"].tolist(), strict=True)) == launches


def test_a_launch_with_many_executions_is_one_launch() -> None:
    """A graph that is held back is not ambiguous."""
    scene = Scene()
    graph: dict[str, Any] = {"api": "cuGraphLaunch", "stream": A, "stack_hash": 3}
    scene.run(1, 10, 20, 300, stream=A, launch_end_ns=15)
    scene.run(3, 100, 310, 400, launch_end_ns=200, **graph)
    scene.run(4, 100, 410, 500, launch_end_ns=200, **graph)
    found = explain(scene, full(110, 190))
    assert by_stack(found.rows) == {(KERNEL, 3): 80}
    assert found.ambiguous == 0


@pytest.mark.parametrize(
    ("length", "flags", "inside"),
    [
        (ASYNC_COPY_WAITS_FROM_NS, CallFlag.RETURNED, 1),
        (ASYNC_COPY_WAITS_FROM_NS - 1, CallFlag.RETURNED, 0),
        (ASYNC_COPY_WAITS_FROM_NS, 0, 0),
    ],
)
def test_no_nanosecond_is_waited_twice(length: int, flags: int, inside: int) -> None:
    """A record inside a copy that is a wait as a whole adds nothing to it, and is counted."""
    scene = Scene()
    copy: dict[str, Any] = {"api": "cuMemcpyHtoDAsync", "flags": flags}
    scene.run(3, 100, 50_000, 60_000, launch_end_ns=100 + length, **copy)
    found = explain(scene, full(110, 190))
    assert found.inside_waits == inside
    assert int(found.rows["value_ns"].sum()) == (0 if inside else 80)


def test_a_launch_whose_work_has_not_begun_was_held_back_too() -> None:
    """What the launch asked for may run a second later: its stream is known by its handle."""
    scene = Scene()
    scene.run(1, 10, 20, 300, stream=A)
    launch = np.zeros(1, CALL)
    launch["tgid"] = launch["process_start_ns"] = PROCESS
    launch["start_ns"], launch["end_ns"], launch["stream"] = 100, 200, A
    known = scene.arranged()
    found = explain_backpressure(full(110, 190), launch, known.work, known.table)
    assert by_leaf(found.rows) == {(KERNEL, 1): 80}


@pytest.mark.parametrize(
    ("named", "under", "without_launch"),
    [(0, 4, 0), (0x1000, 3, 0), (0x2000, 4, 0), (0x3000, None, 1)],
)
def test_the_thread_that_the_record_names_was_held_back(
    named: int, under: int | None, without_launch: int
) -> None:
    """CUPTI has room for half of a thread pointer; without one it is the thread that entered last."""
    scene = Scene()
    scene.run(1, 10, 20, 300, stream=A, launch_end_ns=15)
    launches = np.zeros(2, CALL)
    launches["tgid"] = launches["process_start_ns"] = PROCESS
    launches["start_ns"], launches["end_ns"], launches["stream"] = (100, 105), 200, A
    launches["tid"], launches["stack_hash"][:, 0] = (MAIN, SECOND), (3, 4)
    launches["thread_pointer"] = 0x7F00_0000_1000, 0x7F00_0000_2000
    known = scene.arranged()
    records = full(110, 190, thread_pointer=named)
    found = explain_backpressure(records, launches, known.work, known.table)
    assert by_stack(found.rows) == ({} if under is None else {(KERNEL, under): 80})
    assert found.without_launch == without_launch
    assert found.ambiguous == (named == 0)


def test_launches_of_unknown_length_are_not_held_back() -> None:
    """Without the time of its return a launch contains nothing."""
    scene = Scene()
    scene.run(3, 100, 310, 400, stream=A)
    scene.run(4, 0, 310, 400, stream=A, no_launch=NoLaunch.NO_PROBE)
    assert explain(scene, full(110, 190)).without_launch == 1


intervals = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(intervals, intervals)
def test_placed_records_add_up(
    launches: list[tuple[int, int]], records: list[tuple[int, int]]
) -> None:
    """For any launches of two threads, rows add up to the records that lie inside one of them."""
    scene = Scene()
    ends = {MAIN: 0, SECOND: 0}
    known: list[tuple[int, int]] = []
    for name, (gap, length) in enumerate(launches, start=1):
        tid = (MAIN, SECOND)[name % 2]
        begin = ends[tid] + gap + 1
        ends[tid] = begin + length
        known.append((begin, ends[tid]))
        scene.run(
            name, begin, begin + gap, begin + 2 * gap, stream=A, tid=tid, launch_end_ns=ends[tid]
        )
    placed = [
        (start, start + length)
        for start, length in records
        if any(begin <= start and start + length <= end for begin, end in known)
    ]
    found = explain(scene, *(full(start, start + length) for start, length in records))
    assert int(found.rows["value_ns"].sum()) == sum(end - start for start, end in placed)
    assert found.without_launch == len(records) - len(placed)
