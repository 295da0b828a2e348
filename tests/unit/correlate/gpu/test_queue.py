"""How long executions wait after they could have begun, and for what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.queue import LAUNCH_TAKES_NS, Queued, explain_queue
from otel_gpuflame.correlate.gpu.timeline import busy_intervals
from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import ATTRIBUTION, Leaf, Measure, NoLaunch
from tests.unit.correlate.gpu.scene import A, B, C, Scene, by_leaf

LATENCY, EVENT, FULL = Leaf.LAUNCH_LATENCY, Leaf.WAITS_FOR_EVENT, Leaf.DEVICE_FULL
LONG = int(LAUNCH_TAKES_NS)
"""From here on a full device explains what a launch alone does not."""


def explain(scene: Scene) -> Queued:
    """The queues of a scene."""
    known = scene.arranged()
    return explain_queue(known.work, busy_intervals(known.work.rows), known.marks)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # Name, launch, start, end, stream.
        ([(1, 10, 15, 50, A)], {(LATENCY, 1): 5}),
        ([(1, 10, 10, 50, A)], {}),
        ([(1, 10, 9, 50, A)], {}),
        # It could not begin before the previous work had ended.
        ([(1, 10, 15, 50, A), (2, 12, 51, 60, A)], {(LATENCY, 1): 5, (LATENCY, 2): 1}),
        ([(1, 10, 15, 50, A), (2, 12, 50, 60, A)], {(LATENCY, 1): 5}),
        ([(1, 10, 15, 50, A), (2, 12, 40, 60, A)], {(LATENCY, 1): 5}),
        (
            [(1, 10, 15, 90, A), (2, 12, 40, 60, A), (3, 14, 95, 99, A)],
            {(LATENCY, 1): 5, (LATENCY, 3): 5},
        ),
        # Nor before its launch.
        ([(1, 10, 15, 50, A), (2, 60, 66, 70, A)], {(LATENCY, 1): 5, (LATENCY, 2): 6}),
        # Another stream's work is no reason for a few microseconds,
        (
            [(1, 0, 5, LONG + 50, B), (2, 40, 39 + LONG, LONG + 60, A)],
            {(LATENCY, 1): 5, (LATENCY, 2): LONG - 1},
        ),
        # but for more it is,
        (
            [(1, 0, 5, LONG + 50, B), (2, 40, 40 + LONG, LONG + 60, A)],
            {(LATENCY, 1): 5, (FULL, 2): LONG},
        ),
        # if there was no break,
        (
            [(1, 0, 5, 100, B), (3, 1, 100, LONG + 50, C), (2, 40, 40 + LONG, LONG + 60, A)],
            {(LATENCY, 1): 5, (FULL, 3): 0, (LATENCY, 3): 99, (FULL, 2): LONG},
        ),
        (
            [(1, 0, 5, 100, B), (3, 1, 101, LONG + 50, C), (2, 40, 40 + LONG, LONG + 60, A)],
            {(LATENCY, 1): 5, (LATENCY, 3): 100, (LATENCY, 2): LONG},
        ),
    ],
)
def test_time_in_the_queue(
    runs: list[tuple[int, int, int, int, int]], expected: dict[tuple[Leaf, int], int]
) -> None:
    """From the later of launch and end of the previous work to the start, never below 0, with what it was for."""
    scene = Scene()
    for name, at, start, end, stream in runs:
        scene.run(name, at, start, end, stream=stream)
    assert by_leaf(explain(scene).rows) == {key: value for key, value in expected.items() if value}


def test_a_stream_waits_for_the_work_before_an_event() -> None:
    """Until what was before the event has ended it is the event; what is left is the launch."""
    scene = Scene()
    scene.run(1, 10, 12, 80, stream=B)
    scene.call("cuEventRecord", 11, object=7, stream=B)
    scene.run(2, 13, 80, 200, stream=B)
    scene.call("cuStreamWaitEvent", 20, object=7, stream=A)
    scene.run(3, 30, 84, 99, stream=A)
    assert by_leaf(explain(scene).rows) == {(LATENCY, 1): 2, (EVENT, 3): 50, (LATENCY, 3): 4}


def test_an_event_that_was_past_holds_up_nothing() -> None:
    """Work before the event that had ended by the launch is no reason."""
    scene = Scene()
    scene.run(1, 10, 12, 25, stream=B)
    scene.call("cuEventRecord", 11, object=7, stream=B)
    scene.call("cuStreamWaitEvent", 20, object=7, stream=A)
    scene.run(3, 30, 84, 99, stream=A)
    assert by_leaf(explain(scene).rows) == {(LATENCY, 1): 2, (LATENCY, 3): 54}


@pytest.mark.parametrize(("waits_at", "first_event_ns"), [(20, 50), (31, 0)])
def test_only_stream_waits_before_the_launch_count(waits_at: int, first_event_ns: int) -> None:
    """A stream wait made after a launch does not hold it up, but the next one."""
    scene = Scene()
    scene.run(1, 10, 12, 80, stream=B)
    scene.call("cuEventRecord", 11, object=7, stream=B)
    scene.call("cuStreamWaitEvent", waits_at, object=7, stream=A)
    scene.run(3, 30, 80, 99, stream=A)
    scene.run(4, 40, 99, 120, stream=A)
    found = by_leaf(explain(scene).rows)
    assert found.get((EVENT, 3), 0) == first_event_ns
    assert (EVENT, 4) not in found


def test_the_last_of_several_events_counts() -> None:
    """A stream that waits for two events goes on when both have come."""
    scene = Scene()
    for name, stream, event, end in ((1, B, 7, 80), (2, C, 8, 95)):
        scene.run(name, 10, 12, end, stream=stream)
        scene.call("cuEventRecord", 11, object=event, stream=stream)
        scene.call("cuStreamWaitEvent", 20, object=event, stream=A)
    scene.run(3, 30, 96, 99, stream=A)
    found = by_leaf(explain(scene).rows)
    assert (found[EVENT, 3], found[LATENCY, 3]) == (65, 1)


def test_of_a_graph_the_first_node_queues() -> None:
    """Nodes of one launch do not queue for each other; what comes after a graph waits for all of it."""
    scene = Scene()
    graph: dict[str, Any] = {"api": "cuGraphLaunch", "stream": A, "graph_id": 5}
    scene.run(1, 10, 20, 40, **graph)
    scene.run(2, 10, 30, 90, stream_id=31, **graph)
    scene.run(3, 10, 45, 50, **graph)
    scene.run(4, 60, 93, 99, stream=A)
    scene.run(5, 95, 110, 120, **graph)
    found = by_leaf(explain(scene).rows)
    assert found == {(LATENCY, 1): 10, (LATENCY, 4): 3, (LATENCY, 5): 11}


def test_graphs_whose_nodes_mix_queue_once_each() -> None:
    """Two launches of a graph, from two threads, whose nodes alternate on one stream: each has one first node."""
    scene = Scene()
    graph: dict[str, Any] = {"api": "cuGraphLaunch", "stream": A, "graph_id": 5}
    for name, at, start in ((1, 10, 20), (2, 11, 30), (3, 10, 40), (4, 11, 50)):
        scene.run(name, at, start, start + 5, tid=200 + at, **graph)
    assert by_leaf(explain(scene).rows) == {(LATENCY, 1): 10, (LATENCY, 2): 5}


def test_a_call_that_asks_for_several_copies_queues_once() -> None:
    """Of the copies of one call the first one queues."""
    scene = Scene()
    for name, start in ((1, 20), (2, 30)):
        scene.run(name, 10, start, start + 5, stream=A, api="cuMemcpyHtoDAsync")
    assert by_leaf(explain(scene).rows) == {(LATENCY, 0): 10}


def test_executions_without_a_launch_do_not_queue_but_hold_up_others() -> None:
    """Whose launch is not known has no time in the queue, and is counted; it is previous work all the same."""
    scene = Scene()
    scene.run(1, 0, 20, 90, stream_id=13, no_launch=NoLaunch.NO_PROBE)
    scene.run(2, 30, 95, 99, stream=A)
    found = explain(scene)
    assert by_leaf(found.rows) == {(LATENCY, 2): 5}
    assert found.without_launch == 1


def test_a_row_is_about_the_launch() -> None:
    """It has the launch's stack, and device and name of the execution."""
    scene = Scene()
    scene.run(1, 10, 20, 90, stream=A, device=4, stack_hash=(5, 6), tid=7)
    (row,) = explain(scene).rows
    assert row["stack_hash"].tolist() == [5, 6]
    assert (row["device"], row["name"], row["tid"], row["time_ns"]) == (4, 1, 7, 90)
    assert (row["measure"], row["no_launch"]) == (Measure.GPU_QUEUE, NoLaunch.NONE)
    assert row["api"] == apis.BY_NAME["cuLaunchKernel"].id


runs = st.tuples(
    st.sampled_from([A, B, C]), st.integers(0, 60), st.integers(-3, 30), st.integers(0, 40)
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(runs, max_size=15), st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=6)
)
def test_the_parts_of_a_queue_add_up(
    executions: list[tuple[int, int, int, int]], marks: list[tuple[int, bool]]
) -> None:
    """For any work and events, each execution's rows are start − max(launch, end of what the stream did before)."""
    scene = Scene()
    for name, (stream, at, after, length) in enumerate(executions, start=1):
        start = max(at + after, 0)
        scene.run(name, at, start, start + length, stream=stream, tid=1_000 + name)
    for at, is_record in marks:
        scene.call(
            "cuEventRecord" if is_record else "cuStreamWaitEvent",
            at,
            object=7,
            stream=B if is_record else A,
        )
    rows = explain(scene).rows
    work = scene.arranged().work
    for place in range(len(work.row)):
        row = work.rows[work.row[place]]
        before = [
            int(work.end_ns[other])
            for other in range(place)
            if work.lane[other] == work.lane[place]
        ]
        since = max([int(row["launch_start_ns"]), *before])
        mine = rows[rows["name"] == row["name"]]
        assert int(mine["value_ns"].sum()) == max(int(row["start_ns"]) - since, 0)
    assert (rows["value_ns"] > 0).all()


def test_no_executions() -> None:
    """Nothing queued gives no rows."""
    found = explain(Scene())
    assert (len(found.rows), found.rows.dtype, found.without_launch) == (0, ATTRIBUTION, 0)
