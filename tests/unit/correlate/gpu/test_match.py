"""Columns joined by key and time: each rule as a table."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.match import claim, contains, launches_of, order_by, repeated

NEVER = np.iinfo(np.int64).max


def keys(*values: int) -> np.ndarray:
    """A column of keys."""
    return np.array(values, np.uint64)


def times(*values: int) -> np.ndarray:
    """A column of times."""
    return np.array(values, np.int64)


# Calls as (thread, entry, until), records as (thread, begin), and the call of each record.
CLAIMS = {
    "each its own": ([(1, 10, NEVER), (1, 20, NEVER)], [(1, 11), (1, 21)], [0, 1]),
    "at the same time": ([(1, 10, NEVER)], [(1, 10)], [0]),
    "before all calls": ([(1, 10, NEVER)], [(1, 9)], [-1]),
    "of an unknown thread": ([(1, 10, NEVER), (3, 10, NEVER)], [(2, 11), (4, 11)], [-1, -1]),
    "two in one call": ([(1, 10, NEVER)], [(1, 12), (1, 11)], [-1, 0]),
    "after the return": ([(1, 10, 15)], [(1, 15), (1, 16)], [0, -1]),
    "threads mixed up": (
        [(2, 10, NEVER), (1, 12, NEVER), (2, 14, NEVER), (1, 8, NEVER)],
        [(1, 13), (2, 15), (1, 9), (2, 11)],
        [1, 2, 3, 0],
    ),
    "times that cannot be": ([(1, 10, NEVER)], [(1, 1 << 61), (1, 0)], [0, -1]),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_record_belongs_to_the_call_that_its_thread_was_in(case: str) -> None:
    """The last call of the thread before the record, if it was not over and has no record yet."""
    calls, records, expected = CLAIMS[case]
    thread, entry, until = (times(*column) for column in zip(*calls, strict=True))
    of, begin = (times(*column) for column in zip(*records, strict=True))
    claims = claim(
        (of.astype(np.uint64), begin),
        (thread.astype(np.uint64), entry),
        until,
        np.ones(len(calls), np.bool_),
    )
    assert claims.call.tolist() == expected


def test_calls_that_are_taken_or_launch_nothing_hide_those_before() -> None:
    """A record after a call that is not free belongs to none, rather than to the call before."""
    free = np.array([True, False])
    claims = claim(
        (keys(1, 1), times(15, 25)), (keys(1, 1), times(10, 20)), times(NEVER, NEVER), free
    )
    assert claims.call.tolist() == [0, -1]


def test_the_last_call_of_each_thread_is_told() -> None:
    """One for each thread, whether there are records or not."""
    calls = (keys(2, 1, 2, 1), times(10, 12, 14, 8))
    claims = claim((keys(), times()), calls, times(*[NEVER] * 4), np.ones(4, np.bool_))
    assert sorted(claims.last.tolist()) == [1, 2]


@pytest.mark.parametrize("scale", [1, 10_000], ids=["table", "search"])
def test_an_execution_belongs_to_the_launch_with_its_id(scale: int) -> None:
    """By id, if that had begun; ids that nobody has belong to none."""
    launches = (keys(7, 5, 6) * np.uint64(scale), times(10, 20, 30))
    executions = (keys(5, 6, 7, 8, 4) * np.uint64(scale), times(20, 29, 50, 50, 50))
    found = launches_of(executions, launches, np.ones(3, np.bool_))
    assert found.tolist() == [1, -1, 0, -1, -1]


def test_an_id_that_comes_again_means_its_latest_launch() -> None:
    """Of launches with one id the last that had begun by the start of the execution."""
    launches = (keys(5, 5, 6, 5), times(30, 10, 15, 20))
    executions = (keys(5, 5, 5, 5, 6), times(9, 10, 25, 99, 99))
    found = launches_of(executions, launches, np.ones(4, np.bool_))
    assert found.tolist() == [-1, 1, 3, 0, 2]


@pytest.mark.parametrize("first", [True, False])
def test_of_the_same_launch_twice_the_preferred_one_is_meant(first: bool) -> None:
    """Whichever of them came first."""
    found = launches_of(
        (keys(5), times(20)), (keys(5, 5), times(10, 10)), np.array([first, not first])
    )
    assert found.tolist() == [0 if first else 1]


def test_rows_in_order_are_not_sorted_again() -> None:
    """Nothing is done where nothing is to be done, and by device, start and end otherwise."""
    device, start, end = times(0, 0, 0, 1), times(1, 2, 2, 1), times(9, 5, 6, 7)
    assert order_by(device, start, end) is None
    order = order_by(device[::-1], start[::-1], end[::-1])
    assert order is not None
    assert order.tolist() == [3, 2, 1, 0]


def test_repeated_rows_are_those_that_equal_an_earlier_one() -> None:
    """Rows at the same time are compared in all columns, also where others lie between them."""
    start = times(1, 2, 2, 2, 3, 3)
    column = times(7, 5, 6, 5, 6, 6)
    assert repeated([column], start).tolist() == [False, False, False, True, False, True]


def test_contains_tells_which_values_occur() -> None:
    """Also where nothing occurs, or nothing is asked."""
    assert contains(keys(1, 5, 9, 3), keys(9, 2, 5)).tolist() == [False, True, True, False]
    assert contains(keys(20, 5, 20, 3), keys(*range(4, 90))).tolist() == [True, True, True, False]
    assert contains(keys(1), keys()).tolist() == [False]
    assert contains(keys(), keys(1)).tolist() == []
