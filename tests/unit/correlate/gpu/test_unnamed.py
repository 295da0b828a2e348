"""Kernels of handles that were looked up before capture began: what order tells of them, and what it does not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.segments import TOGETHER_NS
from otel_gpuflame.correlate.gpu.unnamed import (
    ExecutedKernels,
    LaunchedKernels,
    Learned,
    learn_by_order,
)

STEP_NS: Final = 2 * TOGETHER_NS
LATENCY_NS: Final = 5_000


def launched(
    text: str, known: str = "", threads: str = "", step_ns: int = STEP_NS
) -> LaunchedKernels:
    """One launch a letter, by the thread of the letter beside it; of `known` kernels, handle 1 of "a" means "a"."""
    return LaunchedKernels(
        np.array([ord(c) - ord("a") + 1 for c in text], np.uint64),
        np.array([ord(c) if c in known else 0 for c in text], np.uint64),
        np.arange(1, len(text) + 1, dtype=np.int64) * step_ns,
        np.array([ord(c) for c in threads or "m" * len(text)], np.uint64),
    )


def executed(text: str, step_ns: int = STEP_NS) -> ExecutedKernels:
    """One execution a letter, each a little after the launch at its place; a dot has no name."""
    return ExecutedKernels(
        np.array([ord(c) if c != "." else 0 for c in text], np.uint64),
        np.arange(1, len(text) + 1, dtype=np.int64) * step_ns + LATENCY_NS,
    )


def names(learned: Learned) -> dict[str, str]:
    """What each handle means, both as letters."""
    pairs = zip(learned.handles.tolist(), learned.kernels.tolist(), strict=True)
    return {chr(handle - 1 + ord("a")): chr(kernel) for handle, kernel in pairs}


@pytest.mark.parametrize(
    ("text", "ran", "known", "learned"),
    [
        ("", "", "", {}),
        ("ab", "ab", "", {"a": "a", "b": "b"}),
        ("abab", "abab", "b", {"a": "a"}),
        ("abc", "aba", "", {"a": "a", "b": "b", "c": "a"}),
        ("abab", "abba", "", {}),
        ("aab", "ab", "", {}),
        ("ab", "a.", "", {"a": "a"}),
    ],
    ids=[
        "nothing",
        "one by one",
        "one has a name",
        "one kernel by two handles, of two modules",
        "a handle that would mean two kernels: the order is another one",
        "one was captured or lost",
        "one without a name",
    ],
)
def test_what_handles_mean(text: str, ran: str, known: str, learned: dict[str, str]) -> None:
    """All of a stretch, or nothing of it."""
    found = learn_by_order(launched(text, known), executed(ran))
    assert names(found) == learned
    assert not len(found.doubtful)


def test_names_that_contradict_are_doubted() -> None:
    """A handle was given again while nobody looked: nothing is learned where it runs, and it is learned anew."""
    found = learn_by_order(launched("abc", "ab"), executed("acd"))
    assert found.doubtful.tolist() == [2]
    assert not names(found)


def test_nothing_runs_before_it_was_launched() -> None:
    """Then what ran is not what was launched."""
    early = executed("ab")._replace(times_ns=np.array([STEP_NS + 1, 2 * STEP_NS - 1]))
    assert not names(learn_by_order(launched("ab"), early))


@pytest.mark.parametrize(
    ("threads", "known"),
    [("xxxx", "abcd"), ("xxxy", "a"), ("xyyy", "d"), ("xyxy", "")],
)
def test_launches_close_to_those_of_another_thread_tell_nothing(threads: str, known: str) -> None:
    """Their ids may have another order than their entries: 20 µs apart, each has two neighbours within 50 µs."""
    step_ns = TOGETHER_NS * 2 // 5
    found = learn_by_order(launched("abcd", "", threads, step_ns), executed("abcd", step_ns))
    assert names(found) == {letter: letter for letter in known}


@given(st.data())
def test_no_handle_gets_a_wrong_kernel(data: st.DataObject) -> None:
    """Stretches in which launches were lost or captured: what is learned is right, unless as many of both."""
    text = data.draw(st.text("abcde", max_size=30))
    fate = st.sampled_from(["both", "both", "both", "captured", "launch lost"])
    fates = data.draw(st.lists(fate, min_size=len(text), max_size=len(text)))
    assume(not fates.count("captured") == fates.count("launch lost") > 0)
    seen = np.array([fate != "launch lost" for fate in fates], np.bool_)
    ran = np.array([fate != "captured" for fate in fates], np.bool_)
    launches = LaunchedKernels(*(column[seen] for column in launched(text)))
    executions = ExecutedKernels(*(column[ran] for column in executed(text)))
    learned = names(learn_by_order(launches, executions))
    assert all(handle == kernel for handle, kernel in learned.items())
    assert bool(learned) is (bool(text) and set(fates) == {"both"})
