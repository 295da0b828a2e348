"""Launches and executions paired by order: a table of what can lie between them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.align import Sequence, align
from otel_gpuflame.events.wire import Kind

STEP_NS: Final = 10_000
LATENCY_NS: Final = 5_000


def signature(letter: str) -> int:
    """`a` to `z` are kernels, `?` one of unknown name, `G` a graph, digits copies of that size."""
    if letter == "G":
        return int(Kind.GRAPH_LAUNCH) << 56
    if letter.isdigit():
        return int(Kind.COPY) << 56 | int(letter)
    return int(Kind.LAUNCH) << 56 | (0 if letter == "?" else ord(letter))


def launches(text: str, step_ns: int = STEP_NS) -> Sequence:
    """One launch a letter."""
    times = np.arange(1, len(text) + 1, dtype=np.int64) * step_ns
    return Sequence(np.array([signature(c) for c in text], np.uint64), times)


def executions(text: str, begins_ns: list[int]) -> Sequence:
    """One execution a letter."""
    return Sequence(
        np.array([signature(c) for c in text], np.uint64), np.array(begins_ns, np.int64)
    )


def pairs(text: str, executed: str, launch_of: list[int]) -> dict[int, int]:
    """Execution -> launch, as found, where execution i really belongs to launch `launch_of[i]`."""
    of = launches(text)
    begins = [int(of.times_ns[place]) + LATENCY_NS for place in launch_of]
    found = align(of, executions(executed, begins), is_last=True)
    return dict(zip(found.execution.tolist(), found.launch.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "executed", "launch_of"),
    [
        ("", "", []),
        ("abc", "abc", [0, 1, 2]),
        ("a1aG", "a1aG", [0, 1, 2, 3]),
        ("a?b", "aab", [0, 1, 2]),
        ("aab", "a?b", [0, 1, 2]),
        ("abc", "bac", [1, 0, 2]),
        ("abcd", "dabc", [3, 0, 1, 2]),
        ("abcabcabcG", "abcG", [0, 1, 2, 9]),
        ("xabcdefghG", "xG", [0, 9]),
        ("ab", "a", [0]),
        ("a" + 100 * "bcde" + "fgh", "afgh", [0, 401, 402, 403]),
    ],
    ids=[
        "nothing",
        "one by one",
        "every kind",
        "launch of unknown name",
        "execution of unknown name",
        "two threads swapped",
        "one thread overtook three",
        "captured after the same was executed",
        "captured, fewer than may be overtaken",
        "not executed yet",
        "captured, more than may be overtaken",
    ],
)
def test_executions_find_their_launches(text: str, executed: str, launch_of: list[int]) -> None:
    """Every execution belongs to its own launch, whatever lies between."""
    assert pairs(text, executed, launch_of) == dict(enumerate(launch_of))


def test_an_execution_without_a_launch_is_left_out() -> None:
    """Those around it are paired all the same, and it is counted."""
    of = launches("abc")
    begins = [(of.times_ns[i] + LATENCY_NS) for i in (0, 0, 1, 2)]
    found = align(of, executions("azbc", begins), is_last=True)
    assert dict(zip(found.execution.tolist(), found.launch.tolist(), strict=True)) == {
        0: 0,
        2: 1,
        3: 2,
    }
    assert found.skipped == 1


def test_nothing_executes_before_it_was_launched() -> None:
    """A kernel that began before the only launch of its name is not of that launch."""
    of = launches("ab")
    found = align(of, executions("b", [int(of.times_ns[1]) - 1]), is_last=True)
    assert len(found.launch) == 0
    assert found.skipped == 1


def test_what_may_still_come_is_not_decided() -> None:
    """An execution whose launch is not known yet waits for it; at the end it does not."""
    of = launches("ab")
    later = int(of.times_ns[1]) + 5 * STEP_NS
    begins = [int(of.times_ns[0]) + LATENCY_NS, later]
    found = align(of, executions("az", begins))
    assert found.executions_done == 1
    assert found.launches_left.tolist() == [1]
    assert align(of, executions("az", begins), is_last=True).executions_done == 2


def test_a_launch_that_was_overtaken_long_ago_is_given_up() -> None:
    """The next execution of that name belongs to a launch of now, not to one that was captured long before."""
    of = launches("abab", step_ns=5_000_000)
    begins = [int(of.times_ns[i]) + LATENCY_NS for i in (1, 2, 3)]
    found = align(of, executions("bab", begins), is_last=True)
    assert found.launch.tolist() == [1, 2, 3]


@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Programs with captured stretches of their own names, cut anywhere: each execution has its own launch."""
    kernels = "abcdefgh"
    blocks = data.draw(
        st.lists(
            st.tuples(st.booleans(), st.text(kernels, min_size=1, max_size=12), st.integers(1, 4)),
            max_size=8,
        )
    )
    text, launch_of = "", []
    for index, (captured, names, times) in enumerate(blocks):
        # A captured stretch has kernels of its own: equal ones cannot be told apart by order.
        part = names.translate({ord(c): chr(ord(c) + 8) for c in kernels}) if captured else names
        part = part * times
        if not captured:
            launch_of += range(len(text), len(text) + len(part))
        text += part
        if captured:
            launch_of.append(len(text))
            text += str(index % 10)
    executed = "".join(text[place] for place in launch_of)
    of = launches(text)
    ends = [int(of.times_ns[place]) + LATENCY_NS for place in launch_of]
    cut = data.draw(st.integers(0, len(launch_of)))
    whole = align(of, executions(executed, ends), is_last=True)
    assert whole.launch.tolist() == launch_of
    known = launch_of[cut - 1] + 1 if cut else 0
    first = align(
        Sequence(of.signatures[:known], of.times_ns[:known]),
        executions(executed[:cut], ends[:cut]),
    )
    assert first.launch.tolist() == launch_of[:cut]
