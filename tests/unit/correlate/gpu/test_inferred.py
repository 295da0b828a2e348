"""Launches that CUPTI did not record: the records that are made for them, whatever the order and the batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.events.executions import (
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
    name_handle,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    Event,
    HandleName,
    LossCount,
    Names,
    SourceCounters,
    Watermark,
)
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.traffic import PROCESS, SECOND, THREAD, call, executed, launched

MS: Final = 1_000_000
BEGIN_NS: Final = 1_000 * MS
FIRST_NS: Final = BEGIN_NS + 150 * MS
"""Of the first launch: a context had to be created."""
HANDLES: Final = {"a": 0xA0, "b": 0xB0, "c": 0xC0}


def names(*, of_handles: bool = True) -> Names:
    """Each kernel by the program's handle and by CUPTI's text."""
    found = []
    for index, (letter, handle) in enumerate(HANDLES.items()):
        if of_handles:
            found.append(HandleName(PROCESS, 0, handle, f"kernel_{letter}"))
        found.append(HandleName(PROCESS, 0, name_handle(64 * index), f"kernel_{letter}"))
    return Names(tuple(found))


def launch(letter: str, at: int, thread: int = THREAD) -> CallArray:
    """A kernel launch."""
    return call(1, at, thread=thread, object=HANDLES[letter])


def execution(letter: str, id_: int, start: int) -> ExecutionArray:
    """What CUPTI says of it."""
    handle = name_handle(64 * list(HANDLES).index(letter))
    return executed(id_, start, start + 1_000, name=handle)


def records(events: Iterable[Event]) -> dict[int, tuple[int, int]]:
    """Correlation id -> (entry, thread) of the records of launches among events."""
    found = {}
    for event in events:
        rows = event.rows if isinstance(event, Executions) else ()
        for row in rows:
            if row["kind"] == GpuKind.API:
                found[int(row["correlation_id"])] = (
                    int(row["start_ns"]),
                    int(row["thread_pointer"]),
                )
    return found


def run(events: Iterable[Event]) -> tuple[dict[int, tuple[int, int]], InferredLaunches]:
    """The records that come out, and the stage."""
    stage = InferredLaunches()
    passed: list[Event] = []
    for event in events:
        passed += stage.feed(event)
    return records(passed + stage.finish()), stage


def program(text: str, *, first_id: int = 9) -> tuple[list[CallArray], list[ExecutionArray]]:
    """A launch each 100 µs, by two threads in turn; each runs 5 µs later. Ids count other calls too."""
    calls, works = [], []
    for index, letter in enumerate(text):
        at = FIRST_NS + 100_000 * index
        calls.append(launch(letter, at, (THREAD, SECOND)[index % 2]))
        works.append(execution(letter, (first_id + 3 * index) % (1 << 32), at + 5_000))
    return calls, works


def expected(calls: list[CallArray], works: list[ExecutionArray]) -> dict[int, tuple[int, int]]:
    """The record of each."""
    return {
        int(work["correlation_id"][0]): (
            int(one["start_ns"][0]),
            int(one["thread_pointer"][0]),
        )
        for one, work in zip(calls, works, strict=True)
    }


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """One batch."""
    return np.concatenate(parts)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("executions_first", [True, False])
def test_each_launch_gets_its_record(size: int, executions_first: bool) -> None:
    """In whatever batches both sides come, and whichever comes first."""
    calls, works = program("abcab" * 8)
    events: list[Event] = [names(), ExecutionsBegin(PROCESS, BEGIN_NS)]
    for begin in range(0, len(calls), size):
        both: list[Event] = [
            Calls(joined(calls[begin : begin + size])),
            Executions(joined(works[begin : begin + size])),
        ]
        events += reversed(both) if executions_first else both
        done_ns = FIRST_NS + 100_000 * (begin + size)
        events += [ExecutionWatermark(PROCESS, done_ns), Watermark(done_ns)]
    found, stage = run(events)
    assert found == expected(calls, works)
    assert stage.counts["inferred"] == len(calls)


def test_launches_that_were_recorded_need_no_other_record() -> None:
    """Only those that CUPTI left out get one."""
    calls, works = program("abc" * 4)
    recorded = [
        launched(int(work["correlation_id"][0]), int(one["start_ns"][0]) + 100, 0)
        for one, work in zip(calls[::2], works[::2], strict=True)
    ]
    found, stage = run(
        [
            names(),
            ExecutionsBegin(PROCESS, BEGIN_NS),
            Calls(joined(calls)),
            Executions(joined([*works, *recorded])),
        ]
    )
    assert stage.counts["inferred"] == len(calls) // 2
    assert {id_: found[id_] for id_ in expected(calls[1::2], works[1::2])} == expected(
        calls[1::2], works[1::2]
    )


def test_ids_wrap() -> None:
    """After 2³² calls ids begin anew, and the order goes on."""
    calls, works = program("abcabc", first_id=(1 << 32) - 7)
    events: list[Event] = [
        names(),
        ExecutionsBegin(PROCESS, BEGIN_NS),
        Calls(joined(calls)),
        Executions(joined(works)),
    ]
    assert run(events)[0] == expected(calls, works)


def test_a_window_in_the_middle_begins_at_a_synchronisation() -> None:
    """Kernels repeat, and some that run in the window were launched before it: none is paired a turn too early."""
    earlier = [launch("a", BEGIN_NS - 3_000), launch("b", BEGIN_NS - 2_000)]
    backlog = [execution("a", 10, BEGIN_NS + 9_000), execution("b", 13, BEGIN_NS + 10_000)]
    before = [launch("a", BEGIN_NS + 1_000), launch("b", BEGIN_NS + 2_000)]
    ran_before = [execution("a", 16, BEGIN_NS + 11_000), execution("b", 19, BEGIN_NS + 12_000)]
    wait = call(2, BEGIN_NS + 3_000, BEGIN_NS + 20_000, "cuStreamSynchronize")
    sync = executed(22, BEGIN_NS + 4_000, BEGIN_NS + 19_000, kind=GpuKind.SYNC, detail=3)
    after = [launch("a", BEGIN_NS + 30_000), launch("b", BEGIN_NS + 31_000)]
    ran_after = [execution("a", 25, BEGIN_NS + 32_000), execution("b", 28, BEGIN_NS + 34_000)]
    found, _ = run(
        [
            names(),
            Calls(joined(earlier)),
            ExecutionsBegin(PROCESS, BEGIN_NS),
            Calls(joined([*before, wait, *after])),
            Executions(joined([*backlog, *ran_before, sync, *ran_after])),
            ExecutionWatermark(PROCESS, BEGIN_NS + 200 * MS),
            Watermark(BEGIN_NS + 200 * MS),
        ]
    )
    assert found == expected(after, ran_after)


def agreeing(at_ns: int, id_: int) -> tuple[CallArray, ExecutionArray]:
    """A wait that both sides have seen."""
    wait = call(9, at_ns, at_ns + 20_000, "cuStreamSynchronize")
    return wait, executed(id_, at_ns + 1_000, at_ns + 19_000, kind=GpuKind.SYNC, detail=3)


def test_a_program_that_had_its_functions_before_gets_its_records() -> None:
    """Nobody names its handles any more. Names that order tells hold where it tells nothing: one of the last kernels
    was captured.
    """
    calls, works = program("abacabbca")
    begin, whole, end = (
        agreeing(at_ns, id_)
        for at_ns, id_ in ((FIRST_NS - MS, 5), (FIRST_NS + 550_000, 25), (FIRST_NS + 2 * MS, 90))
    )
    events = [
        names(of_handles=False),
        # It ran before: the first launch of the window is not that of the program.
        Calls(launch("a", BEGIN_NS - 3_000)),
        ExecutionsBegin(PROCESS, BEGIN_NS),
        Calls(joined([begin[0], *calls[:6], whole[0], *calls[6:], end[0]])),
        Executions(joined([begin[1], *works[:6], whole[1], *works[6:8], end[1]])),
        ExecutionWatermark(PROCESS, FIRST_NS + 10 * MS),
        Watermark(FIRST_NS + 10 * MS),
    ]
    found, stage = run(events)
    assert found == expected(calls[:8], works[:8])
    assert stage.counts["ambiguous"] == 0


def test_calls_may_come_after_the_end_of_the_window() -> None:
    """The end is known when executions have been read; probes deliver a little later."""
    calls, works = program("abc")
    end_ns = FIRST_NS + MS
    found, _ = run(
        [
            names(),
            ExecutionsBegin(PROCESS, BEGIN_NS),
            Executions(joined(works)),
            ExecutionsEnd(PROCESS, end_ns),
            Watermark(end_ns - 2 * MS),
            Calls(joined(calls)),
            Watermark(end_ns + 200 * MS),
        ]
    )
    assert found == expected(calls, works)


def test_records_come_before_the_watermark_that_they_belong_to() -> None:
    """The next stage decides at watermarks: what it decides must be there."""
    calls, works = program("abc")
    stage = InferredLaunches()
    for event in (
        names(),
        ExecutionsBegin(PROCESS, BEGIN_NS),
        Calls(joined(calls)),
        Executions(joined(works)),
        ExecutionWatermark(PROCESS, FIRST_NS + 200 * MS),
    ):
        stage.feed(event)
    events = stage.feed(Watermark(FIRST_NS + 200 * MS))
    assert records(events[:-1]) == expected(calls, works)
    assert isinstance(events[-1], Watermark)


def test_without_executions_events_pass_as_they_are() -> None:
    """A program without the library costs nothing but a look at each event."""
    calls, _ = program("abc")
    events: list[Event] = [names(), Calls(joined(calls)), Watermark(FIRST_NS + MS)]
    stage = InferredLaunches()
    assert [stage.feed(event) for event in events] == [[event] for event in events]
    assert stage.finish() == []


@pytest.mark.parametrize(
    ("launched_kernels", "executed_kernels", "incomplete"),
    [(20, 20, ""), (20, 0, "kernels_missing"), (3, 0, "")],
)
def test_a_window_without_any_kernel_is_not_complete(
    launched_kernels: int, executed_kernels: int, incomplete: str
) -> None:
    """CUPTI may record copies only, and say that nothing is missing; a few launches may all be captured."""
    calls, works = program("a" * launched_kernels)
    stage = InferredLaunches()
    events: list[Event] = [names(), ExecutionsBegin(PROCESS, BEGIN_NS), Calls(joined(calls))]
    events += [Executions(rows) for rows in works[:executed_kernels]]
    for event in events:
        stage.feed(event)
    (end,) = stage.feed(ExecutionsEnd(PROCESS, FIRST_NS + 100 * MS))
    assert end == ExecutionsEnd(PROCESS, FIRST_NS + 100 * MS, incomplete)


def test_a_lost_call_stops_pairing_until_both_sides_agree_again() -> None:
    """A lost launch would shift all of its kernel by one: nothing is said before the next synchronisation."""
    calls, works = program("aaaaaa")
    lost = SourceCounters(FIRST_NS, (LossCount("launch", "ring_full", 1),))
    after_ns = FIRST_NS + 10 * MS
    wait = call(2, after_ns, after_ns + 50_000, "cuStreamSynchronize")
    sync = executed(1_000, after_ns + 10_000, after_ns + 40_000, kind=GpuKind.SYNC, detail=3)
    later, ran_later = [launch("a", after_ns + MS)], [execution("a", 1_010, after_ns + MS + 5_000)]
    found, stage = run(
        [
            names(),
            ExecutionsBegin(PROCESS, BEGIN_NS),
            Calls(joined(calls[1:])),
            Executions(joined(works)),
            lost,
            ExecutionWatermark(PROCESS, FIRST_NS + 120 * MS),
            Watermark(FIRST_NS + 5 * MS),
            Calls(joined([wait, *later])),
            Executions(joined([sync, *ran_later])),
            Watermark(FIRST_NS + 120 * MS),
        ]
    )
    assert found == expected(later, ran_later)
    assert stage.counts["ambiguous"] == len(works)


def test_a_program_that_ran_before_is_not_taken_for_one_that_begins() -> None:
    """Its earlier calls were seen while another program was followed: executions of them may still come."""
    other = ProcessKey(900, 9)
    earlier = [launch("a", BEGIN_NS - 5 * MS)]
    calls = [launch("a", BEGIN_NS + 20 * MS), launch("a", BEGIN_NS + 21 * MS)]
    backlog = [execution("a", 10, BEGIN_NS + 22 * MS), execution("a", 13, BEGIN_NS + 23 * MS)]
    found, _ = run(
        [
            names(),
            ExecutionsBegin(other, BEGIN_NS - 100 * MS),
            Calls(joined(earlier)),
            ExecutionsBegin(PROCESS, BEGIN_NS),
            Calls(joined(calls)),
            Executions(joined(backlog)),
            ExecutionWatermark(PROCESS, BEGIN_NS + 200 * MS),
            ExecutionWatermark(other, BEGIN_NS + 200 * MS),
            Watermark(BEGIN_NS + 200 * MS),
        ]
    )
    assert found == {}
