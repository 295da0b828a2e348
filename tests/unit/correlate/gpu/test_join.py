"""Which launch an execution belongs to: tables over what arrives, each in every order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.join import Join, Limits, Settled
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import NoLaunch
from tests.unit.correlate.gpu.traffic import (
    OTHER,
    PROCESS,
    SECOND,
    call,
    executed,
    launched,
)

COMPLETE = np.full(8, FOREVER)
NUMBERS = {PROCESS.tgid: 0, OTHER.tgid: 1}
FULL_ID = (1 << 32) - 1

GRAPH: dict[str, Any] = {"api": "cuGraphLaunch"}
RETURNED: dict[str, Any] = {"api": "cuMemcpyDtoH"}

# Name: what arrives, and for each execution, by start, its launch's stack or why it has none.
CASES: dict[str, tuple[list[Any], list[int | NoLaunch]]] = {
    "one of each": ([call(5, 10), launched(1, 11, 12), executed(1, 20, 30)], [5]),
    "no probe": ([launched(1, 11, 12), executed(1, 20, 30)], [NoLaunch.NO_PROBE]),
    "no record": ([call(5, 10), executed(1, 20, 30)], [NoLaunch.NO_LAUNCH_RECORD]),
    "neither": ([executed(1, 20, 30)], [NoLaunch.NO_LAUNCH_RECORD]),
    "no execution": ([call(5, 10), launched(1, 11, 12)], []),
    "graph with three nodes": (
        [
            call(5, 10, **GRAPH),
            launched(1, 11, 12),
            executed(1, 20, 30, graph_node_id=1),
            executed(1, 30, 35, graph_node_id=2),
            executed(1, 30, 36, graph_node_id=3),
        ],
        [5, 5, 5],
    ),
    "id of a launch with an earlier one": (
        [
            call(5, 10),
            launched(FULL_ID, 11, 12),
            call(6, 40),
            launched(FULL_ID, 41, 42),
            executed(FULL_ID, 20, 30),
            executed(FULL_ID, 50, 60),
        ],
        [5, 6],
    ),
    "ids that wrap": (
        [
            call(5, 10),
            launched(FULL_ID, 11, 12),
            call(6, 20),
            launched(0, 21, 22),
            executed(0, 40, 50),
            executed(FULL_ID, 30, 40),
        ],
        [5, 6],
    ),
    "execution before its launch began": (
        [call(5, 10), launched(1, 11, 12), executed(1, 5, 9)],
        [NoLaunch.NO_LAUNCH_RECORD],
    ),
    "probe after the record began": (
        [call(5, 12), launched(1, 11, 13), executed(1, 20, 30)],
        [NoLaunch.NO_PROBE],
    ),
    "record in a call of another thread": (
        [call(5, 10, thread=SECOND), launched(1, 11, 12), executed(1, 20, 30)],
        [NoLaunch.NO_PROBE],
    ),
    "record in a call of another process": (
        [call(5, 10, process=OTHER), launched(1, 11, 12), executed(1, 20, 30)],
        [NoLaunch.NO_PROBE],
    ),
    "same id in two processes": (
        [
            call(5, 10),
            launched(1, 11, 12),
            call(6, 10, process=OTHER),
            launched(1, 11, 12, process=OTHER),
            executed(1, 20, 30, process=OTHER),
            executed(1, 21, 30),
        ],
        [6, 5],
    ),
    "two threads at once": (
        [
            call(5, 10),
            call(6, 11, thread=SECOND),
            launched(2, 12, 14, thread=SECOND),
            launched(1, 13, 15),
            executed(1, 20, 30),
            executed(2, 30, 40),
        ],
        [5, 6],
    ),
    "second probe missing": (
        [
            call(5, 10),
            launched(1, 11, 12),
            launched(2, 21, 22),
            executed(1, 30, 40),
            executed(2, 40, 50),
        ],
        [5, NoLaunch.NO_PROBE],
    ),
    "first record missing": (
        [call(5, 10), call(6, 20), launched(2, 21, 22), executed(1, 30, 40), executed(2, 40, 50)],
        [NoLaunch.NO_LAUNCH_RECORD, 6],
    ),
    "a wait in between": (
        [
            call(5, 10),
            call(6, 20, 30, "cuStreamSynchronize"),
            launched(1, 21, 22),
            executed(1, 30, 40),
        ],
        [NoLaunch.NO_PROBE],
    ),
    "record after the call returned": (
        [call(5, 10, 15, **RETURNED), launched(1, 16, 17), executed(1, 20, 30)],
        [NoLaunch.NO_PROBE],
    ),
    "blocking copy that returns after its execution": (
        [call(5, 10, 60, **RETURNED), launched(1, 11, 55), executed(1, 20, 50)],
        [5],
    ),
    "two streams and devices": (
        [
            call(5, 10),
            launched(1, 11, 12),
            call(6, 13),
            launched(2, 14, 15),
            executed(2, 20, 30, device=1, stream_id=8),
            executed(1, 25, 35, device=0),
        ],
        [5, 6],
    ),
    "duplicated execution": (
        [call(5, 10), launched(1, 11, 12), executed(1, 20, 30), executed(1, 20, 30)],
        [5],
    ),
    "duplicated record": (
        [call(5, 10), launched(1, 11, 12), launched(1, 11, 12), executed(1, 20, 30)],
        [5],
    ),
    "duplicated probe": (
        [call(5, 10), call(5, 10), launched(1, 11, 12), executed(1, 20, 30)],
        [5],
    ),
    "times that are zero or inverted": (
        [
            call(5, 10),
            launched(1, 11, 12),
            executed(1, 0, 0),
            executed(1, 30, 20),
            executed(1, 20, 30),
        ],
        [5],
    ),
    "record without an end": ([call(5, 10), launched(1, 11, 0), executed(1, 20, 30)], [5]),
    "record without times": (
        [call(5, 10), launched(1, 0, 0), executed(1, 20, 30)],
        [NoLaunch.NO_LAUNCH_RECORD],
    ),
    "an execution that takes no time": (
        [call(5, 10), launched(1, 11, 12), executed(1, 20, 20)],
        [5],
    ),
}


def take(join: Join, row: Any, now_ns: int | None = None) -> None:
    """Add a row of either side."""
    numbers = np.array([NUMBERS[int(row["tgid"][0])]], np.int32)
    if row.dtype == wire.CALL:
        join.add_calls(row, numbers)
    else:
        join.add_records(row, numbers, now_ns)


def launches(settled: Settled) -> list[int | NoLaunch]:
    """For each execution its launch's stack, or why it has none."""
    return [
        NoLaunch(row["no_launch"]) if row["no_launch"] else int(row["stack_hash"][0])
        for row in settled.executions
    ]


def assert_balanced(join: Join) -> None:
    """Nothing that was seen is missing in the books."""
    counts = join.counts
    assert counts.seen == counts.attributed + counts.dropped.total() + counts.pending


def orders(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All orders of up to four rows, and some of more."""
    if len(rows) <= 4:
        return list(permutations(rows))
    random = np.random.default_rng(7)
    shuffled = [tuple(rows[i] for i in random.permutation(len(rows))) for _ in range(30)]
    return [tuple(rows), tuple(reversed(rows)), *shuffled]


@pytest.mark.parametrize("case", CASES)
def test_an_execution_finds_its_launch_in_whatever_order_they_arrive(case: str) -> None:
    """Each case gives the same launches in all orders of arrival, and accounts for every execution."""
    rows, expected = CASES[case]
    for order in orders(rows):
        join = Join()
        for row in order:
            take(join, row)
        assert launches(join.settle(1000, COMPLETE)) == expected
        assert_balanced(join)


@pytest.mark.parametrize("case", CASES)
def test_when_things_are_settled_makes_no_difference(case: str) -> None:
    """Settled again and again as time goes on, each case gives the launches that it gives at the end."""
    rows, expected = CASES[case]
    join, found = Join(), []
    for now in range(0, 110, 5):
        for row in rows:
            at = max(int(row["start_ns"][0]), int(row["end_ns"][0]))
            if now - 5 < at <= now or (now == 0 and at == 0):
                take(join, row)
        # Decided 30 later: the longest that a copy returns after its execution here is 10.
        settled = join.settle(now - 30, COMPLETE)
        places = settled.executions[["device", "start_ns", "end_ns"]].tolist()
        found += list(zip(places, launches(settled), strict=True))
    assert [launch for _, launch in sorted(found, key=lambda pair: pair[0])] == expected
    assert_balanced(join)


def test_joined_rows_have_the_fields_of_both() -> None:
    """A joined row says what ran where, and who asked for it when."""
    join = Join()
    rows = (
        call(5, 10, tid=101, stream=0xAB, object=0xCD, span_id=[7] * 8),
        launched(1, 11, 13),
        executed(1, 20, 30, name=99, device=3, bytes=1),
    )
    for row in rows:
        take(join, row)
    (row,) = join.settle(1000, COMPLETE).executions
    assert (row["start_ns"], row["end_ns"], row["name"], row["device"]) == (20, 30, 99, 3)
    assert (row["launch_start_ns"], row["launch_end_ns"]) == (10, 13)
    assert (row["tid"], row["stream"], row["object"]) == (101, 0xAB, 0xCD)
    assert row["span_id"].tolist() == [7] * 8
    assert row["launch_kind"] == wire.Kind.LAUNCH


def test_fields_of_a_missing_launch_are_zero() -> None:
    """An execution without a launch has its process, and nothing of any call."""
    join = Join()
    take(join, call(5, 10, stream=0xAB))
    take(join, executed(1, 20, 30))
    (row,) = join.settle(1000, COMPLETE).executions
    assert row["tgid"] == PROCESS.tgid
    assert [row[name].any() for name in ("launch_start_ns", "stream", "stack_hash", "api")] == [
        False
    ] * 4


def test_rows_come_by_device_and_start() -> None:
    """Executions are handed on by device, then by start, however they came."""
    join = Join()
    for device, start in ((1, 20), (0, 30), (1, 10), (0, 25)):
        take(join, executed(1, start, 50, device=device))
    rows = join.settle(1000, COMPLETE).executions
    assert rows[["device", "start_ns"]].tolist() == [(0, 25), (0, 30), (1, 10), (1, 20)]


def test_what_has_not_ended_stays() -> None:
    """An execution that ends later is not settled, keeps its launch, and is told to be running."""
    join = Join()
    for row in (call(5, 10), launched(1, 11, 12), executed(1, 20, 90)):
        take(join, row)
    settled = join.settle(50, COMPLETE)
    assert (launches(settled), settled.open_ns, join.counts.pending) == ([], {0: 20}, 1)
    assert launches(join.settle(90, COMPLETE)) == [5]


def test_a_launch_is_kept_while_executions_of_its_process_are_not_complete() -> None:
    """An execution that comes long after its launch finds it, if it may still come."""
    join = Join()
    for row in (call(5, 10), launched(1, 11, 12)):
        take(join, row)
    far = 10_000_000_000
    join.settle(far, np.array([11]))
    take(join, executed(1, far - 10, far + 10))
    assert launches(join.settle(2 * far, COMPLETE)) == [5]


def test_late_executions_are_joined_and_set_apart() -> None:
    """What comes after its time was settled has its launch, but is not among the others."""
    join = Join()
    for row in (call(5, 10), launched(1, 11, 12), executed(1, 20, 30)):
        take(join, row)
    join.settle(100, COMPLETE)
    for row in (call(6, 40), launched(2, 41, 42), executed(2, 50, 60), executed(1, 20, 30)):
        take(join, row)
    settled = join.settle(200, COMPLETE)
    assert len(settled.executions) == 0
    assert settled.late["stack_hash"][:, 0].tolist() == [6]
    assert (join.counts.late, dict(join.counts.dropped)) == (1, {"duplicate": 1})
    assert_balanced(join)


def test_wrong_times_are_counted_by_what_is_wrong() -> None:
    """Zero, inverted and impossible times have a count each, and no row."""
    join = Join()
    hours = 3_600_000_000_000
    for row in (
        executed(1, 0, 5),
        executed(1, 9, 5),
        executed(1, 5, 9 * hours),
        executed(1, 9 * hours, 9 * hours),
    ):
        take(join, row, now_ns=1000)
    assert len(join.settle(FOREVER, COMPLETE).executions) == 0
    assert dict(join.counts.dropped) == {"zero_time": 1, "inverted_time": 1, "impossible_time": 2}
    assert_balanced(join)


def test_launches_that_execute_nothing_are_counted() -> None:
    """Launches that were captured into a graph are recorded and seen, and never run."""
    join = Join()
    for row in (call(5, 10), launched(1, 11, 12), call(6, 20), call(7, 30)):
        take(join, row)
    join.settle(10_000_000_000, COMPLETE)
    counts = join.counts
    assert (counts.launches, counts.records, counts.never_executed) == (3, 1, 1)
    # The last call of a thread may still get its record.
    assert counts.launches_without_record == 1


def test_what_was_waiting_too_long_is_evicted() -> None:
    """Settled by force, executions without a partner say so, and their time is not lost."""
    join = Join(Limits(launches=4, executions=2))
    for id_ in range(4):
        take(join, executed(id_, 10 + id_, 20 + id_))
    until_ns = join.overfull_until_ns()
    assert until_ns is not None
    settled = join.settle(until_ns, COMPLETE, is_forced=True)
    assert set(launches(settled)) == {NoLaunch.EVICTED}
    assert join.overfull_until_ns() is None
    assert_balanced(join)


def test_the_oldest_launches_go_when_too_many_are_kept() -> None:
    """No more launches than allowed are kept for executions that may never come; how many went is counted."""
    join = Join(Limits(launches=3))
    for at in range(10, 60, 10):
        take(join, call(at, at))
        take(join, launched(at, at + 1, at + 2))
    join.settle(100, np.array([0]))
    assert join.counts.launches_evicted == 2
    take(join, executed(50, 150, 160))
    take(join, executed(10, 150, 170))
    assert launches(join.settle(200, np.array([0]))) == [50, NoLaunch.NO_LAUNCH_RECORD]


def test_a_forgotten_process_leaves_nothing_behind() -> None:
    """Launches of a process that has gone are no longer found, and its executions are counted as dropped."""
    join = Join()
    for row in (call(5, 10), launched(1, 11, 12), executed(2, 20, 30)):
        take(join, row)
    join.drop(0)
    assert dict(join.counts.dropped) == {"process_gone": 1}
    take(join, executed(1, 20, 30))
    assert launches(join.settle(1000, COMPLETE)) == [NoLaunch.NO_LAUNCH_RECORD]
    assert_balanced(join)


@pytest.mark.parametrize("spread", [1, 1000], ids=["dense ids", "sparse ids"])
def test_many_launches_of_many_threads_find_their_executions(spread: int) -> None:
    """5,000 launches of 7 threads each have their own execution, shuffled."""
    count, random = 5000, np.random.default_rng(3)
    index = np.arange(count)
    calls = np.repeat(call(0, 0), count)
    calls["start_ns"] = 1000 + index * 10
    calls["thread_pointer"] += (index % 7).astype(np.uint64)
    calls["stack_hash"][:, 0] = index
    records = np.repeat(launched(0, 0, 0), count)
    records["start_ns"] = records["end_ns"] = calls["start_ns"] + 1
    records["thread_pointer"] = calls["thread_pointer"]
    records["correlation_id"] = index * spread
    executions = np.repeat(executed(0, 0, 0), count)
    executions["start_ns"] = calls["start_ns"] + random.integers(5, 10_000, count)
    executions["end_ns"] = executions["start_ns"] + 3
    executions["correlation_id"] = records["correlation_id"]
    join, zeros = Join(), np.zeros(count, np.int32)
    join.add_calls(calls[random.permutation(count)], zeros)
    join.add_records(executions[random.permutation(count)], zeros, None)
    join.add_records(records[random.permutation(count)], zeros, None)
    joined = join.settle(1_000_000, COMPLETE).executions
    assert (joined["stack_hash"][:, 0] * spread == joined["correlation_id"]).all()
    assert join.counts.joined == count
