"""Which sampling window executions belong to, when all of it has been told, and what share of it was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.events.attributions import ATTRIBUTION, AttributionArray, Leaf, Measure, NoLaunch
from otel_gpuflame.events.executions import ExecutionsBegin, ExecutionsEnd
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import SamplingWindow
from otel_gpuflame.profile.execution_strata import (
    ExecutionStrata,
    ExecutionStratum,
    Interval,
    covered_share,
)

MS: Final = 1_000_000
S: Final = 1_000 * MS
FIRST, OTHER = ProcessKey(1, 5), ProcessKey(2, 6)
WINDOW: Final = SamplingWindow(
    stratum_start_ns=10 * S,
    stratum_end_ns=20 * S,
    open_ns=12 * S,
    close_ns=13 * S,
    probability_ppb=100_000_000,
)
NEXT: Final = replace(
    WINDOW, stratum_start_ns=20 * S, stratum_end_ns=30 * S, open_ns=20 * S, close_ns=21 * S
)
WHOLE: Final = SamplingWindow(30 * S, 40 * S, 30 * S, 40 * S, 1_000_000_000)


def row(at_ns: int, process: ProcessKey = FIRST, **columns: Any) -> AttributionArray:
    """Execution time of something that was launched then, or what `columns` say."""
    rows = np.zeros(1, ATTRIBUTION)
    rows["tgid"], rows["process_start_ns"] = process.tgid, process.start_ns
    rows["sampled_ns"], rows["measure"], rows["value_ns"] = at_ns, Measure.GPU_TIME, 7
    for name, value in columns.items():
        rows[name] = value
    return rows


def recorded(strata: ExecutionStrata, begin_ns: int, end_ns: int, incomplete: str = "") -> None:
    """The library of FIRST has recorded from then to then."""
    strata.begin(ExecutionsBegin(FIRST, begin_ns))
    strata.end(ExecutionsEnd(FIRST, end_ns, incomplete))


def two_windows() -> ExecutionStrata:
    """Two windows, each recorded from 10 ms after its begin to 5 ms before its end."""
    strata = ExecutionStrata()
    for window in (WINDOW, NEXT):
        strata.open(window)
        recorded(strata, window.open_ns + 10 * MS, window.close_ns - 5 * MS)
    return strata


def place(strata: ExecutionStrata, rows: AttributionArray) -> SamplingWindow | str:
    """What one row belongs to."""
    found = strata.assign(rows)
    for interval, some in found.inside:
        if len(some):
            assert interval.window is not None
            return interval.window
    for stratum, some in found.nobodys:
        if len(some):
            return f"nobody's in {stratum.number}"
    return "exact" if len(found.exact) else "nowhere"


IDLE: Final = {"measure": Measure.GPU_IDLE, "leaf": Leaf.ON_CPU}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (row(12 * S + 500 * MS), WINDOW),
        (row(12 * S + 9 * MS), WINDOW),
        (row(20 * S + 9 * MS), NEXT),
        (row(20 * S + 900 * MS), NEXT),
        (row(14 * S, no_launch=NoLaunch.NO_PROBE), WINDOW),
        (row(12 * S + 9 * MS, no_launch=NoLaunch.NO_PROBE), WINDOW),
        (row(12 * S + 500 * MS, **IDLE), WINDOW),
        (row(12 * S + 9 * MS, **IDLE), "nowhere"),
        (row(13 * S - 5 * MS, **IDLE), "nowhere"),
        (row(14 * S, **IDLE), "nowhere"),
        (row(0, measure=Measure.GPU_WAIT), "exact"),
        (row(12 * S + 500 * MS, measure=Measure.GPU_WAIT, leaf=Leaf.QUEUE_FULL), WINDOW),
        (row(12 * S + 500 * MS, OTHER), "nowhere"),
        (row(12 * S + 500 * MS, ProcessKey(0, 0), **IDLE), "nobody's in 1"),
        (row(13 * S - 2 * MS, ProcessKey(0, 0), **IDLE), "nowhere"),
        (row(14 * S, ProcessKey(0, 0), **IDLE), "nowhere"),
    ],
    ids=[
        "launched inside",
        "entered before the library began, launched after",
        "the same of the next window",
        "launched inside of the next window",
        "launched nobody knows when, executed after the window",
        "and before the begin, by the clock of another client",
        "idle inside",
        "idle before the library began",
        "idle when it had ended",
        "idle between windows",
        "a wait",
        "a launch held back inside",
        "another process, which nobody records",
        "unknown inside",
        "unknown when the library had ended",
        "unknown between windows",
    ],
)
def test_where_something_belongs(rows: AttributionArray, expected: SamplingWindow | str) -> None:
    """Launches to the window that they were recorded in, idle time where it was, waits nowhere in particular."""
    assert place(two_windows(), rows) == expected


def test_where_all_is_captured_nothing_is_scaled() -> None:
    """Also what was launched before the stratum was announced, and in whatever stratum after it."""
    strata = ExecutionStrata()
    strata.begin(ExecutionsBegin(FIRST, 30 * S + MS))
    strata.open(WHOLE)
    assert place(strata, row(30 * S + MS)) == "exact"
    assert place(strata, row(300 * S)) == "exact"
    assert strata.held == 0


def test_strata_of_both_kinds_side_by_side() -> None:
    """The duty changes: what was recorded in a scaled stratum is scaled, what was recorded after it is not."""
    strata = two_windows()
    strata.end(ExecutionsEnd(FIRST, 30 * S))
    strata.open(WHOLE)
    strata.begin(ExecutionsBegin(FIRST, 30 * S + MS))
    assert place(strata, row(20 * S + 500 * MS)) == NEXT
    assert place(strata, row(35 * S)) == "exact"
    assert strata.held == 1


def test_executions_wait_until_their_stratum_has_been_told() -> None:
    """Its end, and 3 s after the last execution; what comes later is counted as left out."""
    strata = two_windows()
    strata.assign(row(12 * S + 500 * MS))
    assert strata.held == 1
    assert strata.tell_until(20 * S - 1) == []
    (told,) = strata.tell_until(20 * S)
    assert told.window == WINDOW
    assert [each.executions for each in told.intervals] == [1]
    assert (strata.held, strata.oldest) == (0, 2)
    strata.assign(row(12 * S + 500 * MS))
    assert dict(strata.left_out) == {"outside_window": 1}


def test_a_stopped_program_is_not_waited_for() -> None:
    """It never says that its window is over: it is left out, and counted, also what comes of it later."""
    strata = ExecutionStrata()
    strata.open(WINDOW)
    strata.begin(ExecutionsBegin(FIRST, 12 * S + 10 * MS))
    strata.assign(row(12 * S + 500 * MS))
    assert strata.tell_until(49 * S) == []
    (told,) = strata.tell_until(50 * S)
    assert told.complete() == {}
    assert dict(strata.left_out) == {"incomplete_window": 1}
    strata.assign(row(12 * S + 500 * MS))
    assert dict(strata.left_out) == {"incomplete_window": 1, "outside_window": 1}
    assert strata.held == 0


def test_nothing_is_kept_of_windows_that_are_over() -> None:
    """A thousand windows of a process leave nothing behind."""
    strata = ExecutionStrata()
    for number in range(1_000):
        shift_ns = 10 * S * number
        window = SamplingWindow(*(ns + shift_ns for ns in (10 * S, 20 * S, 12 * S, 13 * S)), 1)
        strata.open(window)
        recorded(strata, window.open_ns + MS, window.close_ns - MS)
        strata.tell_until(window.stratum_start_ns)
    strata.tell_until(20_000 * S)
    assert place(strata, row(100 * S)) == "exact"
    assert strata.oldest == 1_001


def interval(begin_ns: int, end_ns: int, incomplete: str = "") -> Interval:
    """Of FIRST, in WINDOW."""
    return Interval(FIRST, begin_ns, WINDOW, end_ns=end_ns, incomplete=incomplete)


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([interval(12 * S, 13 * S)], 1.0),
        ([interval(12 * S + 12 * MS, 13 * S - 5 * MS)], 0.983),
        ([interval(12 * S + 600 * MS, 13 * S - 5 * MS)], 0.995),
        ([interval(12 * S + 10 * MS, 12 * S + 400 * MS)], 0.99),
        (
            [
                interval(12 * S + 10 * MS, 12 * S + 60 * MS, "new_context"),
                interval(12 * S + 65 * MS, 13 * S - 5 * MS),
            ],
            0.93,
        ),
    ],
    ids=[
        "all of it",
        "opening and closing took a little",
        "a program that began in the middle",
        "a program that ended in the middle",
        "a context was made: once more",
    ],
)
def test_share_of_a_window_that_was_recorded(intervals: list[Interval], share: float) -> None:
    """Only what was missed while the process was there makes it smaller."""
    assert covered_share(WINDOW, intervals, 100 * S) == pytest.approx(share)


def test_a_capture_that_ends_in_a_window_covers_what_there_was() -> None:
    """The rest of the window was not missed: it never came."""
    some = [interval(12 * S + 10 * MS, 12 * S + 500 * MS)]
    assert covered_share(WINDOW, some, 12 * S + 500 * MS) == pytest.approx(0.98)
    assert covered_share(WINDOW, some, 12 * S) == 0


EVENTS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("window"), st.integers(0, 30), st.sampled_from([1, 1_000_000_000])),
        st.tuples(st.just("begin"), st.sampled_from([FIRST, OTHER]), st.integers(0, 40)),
        st.tuples(
            st.just("end"), st.sampled_from([FIRST, OTHER]), st.sampled_from(["", "ring_full"])
        ),
        st.tuples(st.just("rows"), st.integers(0, 2**32 - 1), st.integers(1, 20)),
        st.tuples(st.just("tell"), st.integers(0, 80), st.just(0)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_every_execution_is_somewhere_once(events: list[tuple[str, Any, Any]]) -> None:
    """Whatever comes in whatever order: as it is, in one interval, or left out; and what is held is let go of."""
    strata, seen, exact, scaled, now_ns = ExecutionStrata(), 0, 0, 0, 0
    for kind, first, second in events:
        now_ns += S
        if kind == "window":
            bounds = (now_ns, now_ns + 10 * S, now_ns + first * S // 10, now_ns + 4 * S)
            strata.open(SamplingWindow(*bounds, second))
        elif kind == "begin":
            strata.begin(ExecutionsBegin(first, max(now_ns - second * S // 10, 0)))
        elif kind == "end":
            strata.end(ExecutionsEnd(first, now_ns, second))
        elif kind == "tell":
            scaled += executed(strata.tell_until(now_ns - 40 * S + first * S))
        else:
            rows = made_up(np.random.default_rng(first), second, now_ns)
            found = strata.assign(rows)
            parts = [found.exact, *(some for _, some in [*found.inside, *found.nobodys])]
            values = np.concatenate([part["value_ns"] for part in parts]).tolist()
            assert len(values) == len(set(values))
            seen += count(rows)
            exact += count(found.exact)
    scaled += executed(strata.tell_until(1 << 62))
    assert strata.held == 0
    assert exact + scaled + strata.left_out.total() == seen


def made_up(random: np.random.Generator, size: int, now_ns: int) -> AttributionArray:
    """Rows of all sorts, each of another value."""
    rows = np.zeros(size, ATTRIBUTION)
    rows["value_ns"] = np.arange(size)
    rows["measure"] = random.choice([Measure.GPU_TIME, Measure.GPU_IDLE, Measure.GPU_WAIT], size)
    rows["no_launch"] = random.choice([NoLaunch.NONE, NoLaunch.NO_PROBE], size)
    rows["sampled_ns"] = random.integers(0, now_ns + S, size)
    pids = random.choice([0, FIRST.tgid, OTHER.tgid, 77], size)
    rows["tgid"], rows["process_start_ns"] = pids, np.where(pids == 0, 0, pids + 4)
    return rows


def count(rows: AttributionArray) -> int:
    """Executions."""
    return int(np.count_nonzero(rows["measure"] == Measure.GPU_TIME))


def executed(told: list[ExecutionStratum]) -> int:
    """Executions of intervals that are scaled."""
    return sum(i.executions for each in told for i in each.intervals if i.is_complete)
