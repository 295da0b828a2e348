"""What is kept between rounds: backlogs, history, recent calls, numbers of processes, unknown times."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu import recent
from otel_gpuflame.correlate.gpu.backlog import Backlog
from otel_gpuflame.correlate.gpu.history import MAX_AGE_NS, History
from otel_gpuflame.correlate.gpu.processes import FOREVER, Processes
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray
from otel_gpuflame.correlate.gpu.unknown import Unknown
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.executions import ExecutionsEnd
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from tests.unit.correlate.gpu.traffic import OTHER, PROCESS, call


def rows(*at: int) -> CallArray:
    """Calls at these times."""
    return np.concatenate([call(1, each) for each in at])


def add(backlog: Backlog, number: int, *at: int) -> None:
    """Put calls of one process into a backlog, due when they begin."""
    new = rows(*at)
    backlog.add(new, np.full(len(at), number, np.int32), new["start_ns"].astype(np.int64))


def ended(*ends: int) -> JoinedArray:
    """Executions that ended at these times, each 1 ns long."""
    found = np.zeros(len(ends), JOINED)
    found["end_ns"] = ends
    found["start_ns"] = found["end_ns"] - np.uint64(1)
    return found


def test_a_backlog_gives_out_what_is_due() -> None:
    """By time, whatever batches the rows came in; each row once."""
    backlog = Backlog(wire.CALL)
    add(backlog, 0, 10, 30)
    add(backlog, 0, 20, 40)
    assert backlog.take_rows(25)["start_ns"].tolist() == [10, 20]
    assert backlog.count == 2
    assert backlog.take_rows(25).dtype == wire.CALL
    assert backlog.take_rows(100)["start_ns"].tolist() == [30, 40]
    assert backlog.last_ns() == 0


@pytest.mark.parametrize(
    "at", [(1, 2, 5, 6), (5, 1, 6, 2), (1, 6, 2, 5), (6, 5, 2, 1), (1, 5, 2, 6)]
)
def test_a_batch_may_be_due_in_part(at: tuple[int, ...]) -> None:
    """What is due goes and the rest stays, in whatever order they are in."""
    backlog = Backlog(wire.CALL)
    add(backlog, 0, *at)
    assert backlog.take_rows(3)["start_ns"].tolist() == [each for each in at if each <= 3]
    assert backlog.take_rows(9)["start_ns"].tolist() == [each for each in at if each > 3]


def test_a_backlog_forgets_one_process_only() -> None:
    """Rows of the others stay."""
    backlog = Backlog(wire.CALL)
    add(backlog, 0, 10)
    add(backlog, 1, 20, 30)
    assert (backlog.drop(1), backlog.count, backlog.last_ns(0), backlog.last_ns(1)) == (2, 1, 10, 0)


def test_cuts_are_even_and_come_before_the_end() -> None:
    """Pieces of the size asked for where rows come evenly; none where one piece will do."""
    backlog = Backlog(wire.CALL)
    add(backlog, 0, *range(0, 100, 10))
    assert backlog.cuts_ns(90, 10) == []
    assert backlog.cuts_ns(90, 5) == [45]
    assert backlog.cuts_ns(45, 3) == [22]


def test_history_keeps_the_latest() -> None:
    """As many rows as allowed, not older than a minute, and tells from when on it is whole."""
    history = History(max_rows=3)
    for at in (10, 20, 30, 40):
        history.add(ended(at), np.array([at]))
    assert (history.since(0)["end_ns"].tolist(), history.begin_ns) == ([20, 30, 40], 10)
    assert history.since(20)["end_ns"].tolist() == [30, 40]
    late = 50 + MAX_AGE_NS
    history.add(ended(late), np.array([late]))
    assert (len(history), history.begin_ns) == (1, 40)


def test_history_is_in_the_order_of_devices_and_starts() -> None:
    """Whatever order the parts came in."""
    history = History()
    first, second = ended(30), ended(20, 25)
    first["device"] = 1
    for part in (first, second):
        history.add(part, part["end_ns"].astype(np.int64))
    assert history.since(0)["end_ns"].tolist() == [20, 25, 30]


def test_recent_calls_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last few calls, of one process, whatever batches they came in."""
    monkeypatch.setattr(recent, "MAX_ROWS", 4)
    calls = rows(*range(10))
    calls["tgid"][7] = OTHER.tgid
    for size in (1, 3, 10):
        kept = recent.RecentCalls()
        for begin in range(0, 10, size):
            kept.add(calls[begin : begin + size])
        assert kept.of(PROCESS)["start_ns"].tolist() == [6, 8, 9]


def test_a_process_has_its_number_as_long_as_it_is_tracked() -> None:
    """Rows get the number of their process by pid and start; a reused pid is another process."""
    processes = Processes()
    again = ProcessKey(PROCESS.tgid, 77)
    for key in (PROCESS, OTHER, again):
        processes.track(key, 0, 0)
    mixed = np.concatenate(
        [call(1, 1, process=p) for p in (again, ProcessKey(5, 5), PROCESS, OTHER)]
    )
    assert processes.numbers_of(mixed).tolist() == [2, -1, 0, 1]
    assert processes.numbers_of(mixed[:1]).tolist() == [2]
    processes.untrack(OTHER)
    assert processes.numbers_of(mixed).tolist() == [2, -1, 0, -1]
    new = processes.track(ProcessKey(9, 9), 5, 6)
    assert new is not None
    assert new.number == 1
    assert processes.complete_ns().tolist() == [0, 6, 0]


def test_a_process_that_begins_again_has_a_new_interval() -> None:
    """Its begin and completeness are those of the new interval; a second begin changes nothing."""
    processes = Processes()
    tracked = processes.track(PROCESS, 10, 10)
    assert tracked is processes.track(PROCESS, 20, 20)
    assert tracked is not None
    assert tracked.begin_ns == 10
    tracked.end_ns, tracked.complete_ns = 30, FOREVER
    processes.track(PROCESS, 40, 40)
    assert (tracked.begin_ns, tracked.complete_ns, tracked.end_ns) == (40, 40, FOREVER)


def test_a_history_that_is_cleared_says_that_nothing_is_known() -> None:
    """Who looks back on what has been let go is told so."""
    history = History()
    history.add(ended(10, 30), np.array([10, 30]))
    history.clear()
    assert (len(history), history.begin_ns, len(history.since(0))) == (0, 30, 0)
    history.clear()
    assert history.begin_ns == 30


def test_unknown_times_hold_where_they_were_said_to() -> None:
    """For all devices, for one, or for those of a process; times that touch become one."""
    unknown = Unknown()
    unknown.submitted(PROCESS, np.array([20, 10], np.uint64))
    unknown.submitted(PROCESS, np.array([30, 40], np.uint64))
    unknown.add(5, 6, Leaf.UNKNOWN_INCOMPLETE, PROCESS)
    unknown.add(7, 8, Leaf.UNKNOWN_INCOMPLETE, 3)
    second = 1_000_000_000
    everywhere = (10, 40 + second, 0, Leaf.UNKNOWN_NOT_CAPTURED)
    assert unknown.on(0, set()).tolist() == [everywhere]
    assert len(unknown.on(0, {PROCESS})) == 2
    assert unknown.on(3, {PROCESS})["start_ns"].tolist() == [10, 5, 7]
    unknown.forget(50)
    assert unknown.on(3, {PROCESS})["start_ns"].tolist() == [10]


def test_a_process_is_unknown_until_it_is_captured_again() -> None:
    """From when its capture ended until it goes on, or ends itself."""
    unknown = Unknown()
    unknown.end(ExecutionsEnd(PROCESS, 10), 0, 5, goes_on=True)
    assert unknown.on(0, {PROCESS})["end_ns"].tolist() == [FOREVER]
    unknown.go_on(PROCESS, 50)
    assert unknown.on(0, {PROCESS})["end_ns"].tolist() == [50]


@pytest.mark.parametrize(
    ("incomplete", "since"), [("ring_full", 3), ("not_flushed", 7), ("process_ended", 7)]
)
def test_an_incomplete_interval_is_unknown_from_where_it_may_be(
    incomplete: str, since: int
) -> None:
    """From its begin, or from where it was cut off; who has ended uses no device any more."""
    unknown = Unknown()
    unknown.end(ExecutionsEnd(PROCESS, 10, incomplete), 3, 7, goes_on=True)
    rows = unknown.on(0, {PROCESS})
    assert rows[0].tolist() == (since, 10, 0, Leaf.UNKNOWN_INCOMPLETE)
    assert (len(rows) == 2) == (incomplete != "process_ended")


def test_submissions_far_apart_do_not_fill_the_time_between() -> None:
    """A second after a submission the device is not taken to be at work for it any more, in one batch or in two."""
    second = 1_000_000_000
    unknown = Unknown()
    unknown.submitted(PROCESS, np.array([0, 5 * second], np.uint64))
    assert unknown.on(0, set())["end_ns"].tolist() == [second, 6 * second]
