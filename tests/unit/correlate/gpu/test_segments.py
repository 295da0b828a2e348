"""Launches and executions of one stretch, paired by order: a table of what can lie between them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.segments import TOGETHER_NS, Executed, Launched, Pairs, pair

STEP_NS: Final = 2 * TOGETHER_NS
LATENCY_NS: Final = 5_000


def launched(text: str, threads: str = "", step_ns: int = STEP_NS) -> Launched:
    """One launch a letter, by the thread of the letter beside it."""
    return Launched(
        np.array([ord(c) for c in text], np.uint64),
        np.arange(1, len(text) + 1, dtype=np.int64) * step_ns,
        np.array([ord(c) for c in threads or "m" * len(text)], np.uint64),
    )


def executed(text: str, begins_ns: list[int]) -> Executed:
    """One execution a letter."""
    return Executed(np.array([ord(c) for c in text], np.uint64), np.array(begins_ns, np.int64))


def found(pairs: Pairs) -> dict[int, int]:
    """Execution -> launch."""
    return dict(zip(pairs.execution.tolist(), pairs.launch.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "launch_of", "known"),
    [
        ("", [], []),
        ("abc", [0, 1, 2], [0, 1, 2]),
        ("aaa", [0, 1, 2], [0, 1, 2]),
        ("abab", [1, 0, 2, 3], [0, 1, 2, 3]),
        ("abcG", [3], [0]),
        ("aaG", [0, 2], [1]),
        ("abaG", [0, 1, 3], [1, 2]),
    ],
    ids=[
        "nothing",
        "one by one",
        "the same kernel again and again",
        "two threads swapped",
        "captured, then launched as a graph",
        "executed, captured, launched as a graph",
        "one of two was captured: nobody can tell which",
    ],
)
def test_what_cannot_be_confused_is_paired(
    text: str, launch_of: list[int], known: list[int]
) -> None:
    """Executions (by id) that are `known` have their own launch; the others have none, and are counted."""
    of = launched(text)
    begins = [int(of.times_ns[place]) + LATENCY_NS for place in launch_of]
    pairs = pair(of, executed("".join(text[place] for place in launch_of), begins))
    assert found(pairs) == {place: launch_of[place] for place in known}
    assert pairs.ambiguous == len(launch_of) - len(known)


def test_a_lost_launch_shifts_nothing() -> None:
    """Of a loop of one kernel one launch is missing: none of that kernel is paired, others are."""
    of = launched("aaab")
    begins = [int(time) + 10 * STEP_NS for time in (1, 2, 3, 4, 5)]
    assert found(pair(of, executed("aaaab", begins))) == {4: 3}


def test_nothing_executes_before_it_was_launched() -> None:
    """As many of a kernel, but one began before its launch: they are not the same ones."""
    of = launched("aab")
    begins = [int(of.times_ns[0]) + 1, int(of.times_ns[1]) - 1, int(of.times_ns[2]) + 1]
    assert found(pair(of, executed("aab", begins))) == {2: 2}


@pytest.mark.parametrize(
    ("step_ns", "known"), [(TOGETHER_NS // 2, {2: 2}), (STEP_NS, {0: 0, 1: 1, 2: 2})]
)
def test_two_threads_at_the_same_time_are_not_told_apart(
    step_ns: int, known: dict[int, int]
) -> None:
    """The same kernel by two threads within 50 µs: ids may have either order. A third launch is not affected."""
    of = launched("aab", "xyx", step_ns)
    begins = [int(time) + LATENCY_NS for time in of.times_ns]
    assert found(pair(of, executed("aab", begins))) == known


@given(st.data())
def test_no_execution_is_given_to_a_wrong_launch(data: st.DataObject) -> None:
    """Random stretches with captured or failed launches, and launches or executions that were lost: right, or nothing.

    But for one thing that order cannot see: as many launches lost as captured of one kernel.
    """
    text = data.draw(st.text("abc", max_size=30))
    fates = data.draw(
        st.lists(
            st.sampled_from(["both", "both", "both", "captured", "launch lost"]),
            min_size=len(text),
            max_size=len(text),
        )
    )
    for kernel in "abc":
        mine = [fate for letter, fate in zip(text, fates, strict=True) if letter == kernel]
        if mine.count("captured") == mine.count("launch lost") > 0:
            return
    whole = launched(text)
    seen = np.array([fate != "launch lost" for fate in fates], np.bool_)
    ran = np.array([fate != "captured" for fate in fates], np.bool_)
    launches = Launched(*(column[seen] for column in whole))
    delay = data.draw(st.integers(1, 20)) * STEP_NS
    pairs = pair(launches, Executed(whole.signatures[ran], whole.times_ns[ran] + delay))
    true_launch, true_execution = np.flatnonzero(seen), np.flatnonzero(ran)
    assert true_launch[pairs.launch].tolist() == true_execution[pairs.execution].tolist()
