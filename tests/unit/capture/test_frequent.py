"""Calls that programs make too often to be probed all the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.budget import AIM
from otel_gpuflame.capture.frequent import (
    BACKWARD_NS,
    BACKWARD_SHARE,
    GRAPH_NS,
    GRAPH_SHARE,
    NAME_NS,
    NAME_SHARE,
    WAIT_NS,
    WAIT_SHARE,
    FrequentPasses,
    RepeatedNames,
    frequent_graph_launches,
    frequent_waits,
)
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_NAME
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray

ONE, OTHER = ProcessKey(1, 10), ProcessKey(2, 20)
SECOND_NS = 1_000_000_000
LIMIT_PER_S = 250
"""A tenth of the default budget of 1 %, at 4 µs each."""


@pytest.fixture
def repeated() -> RepeatedNames:
    """At the default budget, from time 0 on."""
    names = RepeatedNames(0.01)
    assert names.too_dear(SECOND_NS) == set()
    return names


def test_the_limit_is_a_share_of_the_budget() -> None:
    """So that the figure that this file tests with is the one that follows."""
    budget_ns = NAME_SHARE * 0.01 * 1e9
    assert budget_ns / NAME_NS == pytest.approx(LIMIT_PER_S)


def test_what_one_program_asks_too_often_is_dear(repeated: RepeatedNames) -> None:
    """Only that: names asked for once must still be seen."""
    repeated.count({(ONE, ProbeGroup.ALIAS): LIMIT_PER_S + 1, (ONE, ProbeGroup.NAME): LIMIT_PER_S})
    assert repeated.too_dear(2 * SECOND_NS) == {ProbeGroup.ALIAS}


def test_programs_are_not_added_up(repeated: RepeatedNames) -> None:
    """Each pays for its own only."""
    repeated.count({(ONE, ProbeGroup.ALIAS): LIMIT_PER_S, (OTHER, ProbeGroup.ALIAS): LIMIT_PER_S})
    assert repeated.too_dear(2 * SECOND_NS) == set()


def test_it_is_a_rate(repeated: RepeatedNames) -> None:
    """Whatever the time between two decisions, and each counts what came since the last one."""
    repeated.count({(ONE, ProbeGroup.ALIAS): LIMIT_PER_S + 1})
    assert repeated.too_dear(3 * SECOND_NS) == set()
    repeated.count({(ONE, ProbeGroup.ALIAS): LIMIT_PER_S})
    assert repeated.too_dear(4 * SECOND_NS) == set()


def test_nothing_is_decided_more_than_once_a_second(repeated: RepeatedNames) -> None:
    """What was counted meanwhile is kept."""
    repeated.count({(ONE, ProbeGroup.NAME): LIMIT_PER_S + 1})
    assert repeated.too_dear(SECOND_NS + SECOND_NS // 2) == set()
    assert repeated.too_dear(2 * SECOND_NS) == {ProbeGroup.NAME}


def test_programs_are_new_once(repeated: RepeatedNames) -> None:
    """One that ends and whose pid comes again is new again."""
    assert repeated.has_new([1])
    assert not repeated.has_new([1])
    assert repeated.has_new([1, 2])
    assert not repeated.has_new([2])
    assert repeated.has_new([1, 2])
    assert not repeated.has_new([])


WAITS_PER_S = 125
"""0.15 of the budget, at 12 µs each."""
MS = 1_000_000


def rows(*starts_ns: int, api: str = "cuStreamSynchronize", pid: int = 1) -> CallArray:
    """Calls of one process."""
    calls = np.zeros(len(starts_ns), wire.CALL)
    calls["start_ns"], calls["api"], calls["tgid"] = starts_ns, BY_NAME[api].id, pid
    return calls


def evenly(begin_ns: int, length_ns: int, per_s: float, **more: Any) -> CallArray:
    """So many a second."""
    count = round(per_s * length_ns / SECOND_NS)
    return rows(*(begin_ns + number * length_ns // count for number in range(count)), **more)


def test_waits_beyond_their_share_of_the_budget_are_windowed() -> None:
    """Of the program that waits most; other calls do not count, and programs are not added up."""
    assert pytest.approx(WAITS_PER_S, rel=0.01) == WAIT_SHARE * 0.01 * 1e9 / WAIT_NS
    waits = frequent_waits(0.01)
    assert not waits.decide(SECOND_NS)
    for pid in (1, 2):
        waits.count(evenly(SECOND_NS, SECOND_NS, 120, pid=pid))
        waits.count(evenly(SECOND_NS, SECOND_NS, 5_000, pid=pid, api="cuLaunchKernel"))
    assert not waits.decide(2 * SECOND_NS)
    assert not waits.are_windowed
    waits.count(evenly(2 * SECOND_NS, SECOND_NS, 130))
    assert waits.decide(3 * SECOND_NS)
    assert waits.are_windowed


def test_what_is_always_on_leaves_a_part_of_the_budget_for_windows() -> None:
    """Of a program that is just below all limits."""
    assert WAIT_SHARE + NAME_SHARE + GRAPH_SHARE + BACKWARD_SHARE < AIM


def test_windowed_waits_are_always_on_again_when_they_have_become_rare() -> None:
    """Seen in windows alone, over as many as it takes to know their rate; not at once when they are at the limit."""
    waits = frequent_waits(0.01)
    waits.decide(SECOND_NS)
    waits.count(evenly(SECOND_NS, SECOND_NS, 400))
    assert waits.decide(2 * SECOND_NS)
    at_ns = 2 * SECOND_NS
    for per_s, changes in ((75, False), (55, True)):
        for number in range(3):
            waits.begin(at_ns)
            waits.count(evenly(at_ns, 100 * MS, per_s))
            waits.end(at_ns + 100 * MS)
            # Until its probe is gone, a window goes on: that is not counted.
            waits.count(evenly(at_ns + 100 * MS, 200 * MS, 5_000))
            at_ns += SECOND_NS
            assert waits.decide(at_ns) is (changes and number == 2)
    assert not waits.are_windowed


def test_a_rate_that_was_seen_too_shortly_decides_nothing() -> None:
    """Some calls within 0.1 s may be all there are."""
    waits = frequent_waits(0.01)
    waits.decide(SECOND_NS)
    waits.count(evenly(SECOND_NS, 100 * MS, 5_000))
    assert not waits.decide(SECOND_NS + 100 * MS)
    assert not waits.decide(SECOND_NS + 200 * MS)
    assert waits.decide(SECOND_NS + 300 * MS)


GRAPHS_PER_S = 200
"""A tenth of the budget, at 5 µs each."""


def test_graph_launches_beyond_their_share_of_the_budget_are_windowed() -> None:
    """As waits are, each by itself: a program that waits often may launch few graphs. And back."""
    assert pytest.approx(GRAPHS_PER_S) == GRAPH_SHARE * 0.01 * 1e9 / GRAPH_NS
    graphs, waits = frequent_graph_launches(0.01), frequent_waits(0.01)
    for calls in (graphs, waits):
        calls.decide(SECOND_NS)
        calls.count(evenly(SECOND_NS, SECOND_NS, 350))
        calls.count(evenly(SECOND_NS, SECOND_NS, 5_000, api="cuLaunchKernel"))
        calls.count(evenly(SECOND_NS, SECOND_NS, 190, api="cuGraphLaunch"))
    assert not graphs.decide(2 * SECOND_NS)
    assert waits.decide(2 * SECOND_NS)
    graphs.count(evenly(2 * SECOND_NS, SECOND_NS, 210, api="cuGraphLaunch"))
    assert graphs.decide(3 * SECOND_NS)
    assert graphs.are_windowed
    graphs.begin(3 * SECOND_NS)
    graphs.count(evenly(3 * SECOND_NS, 300 * MS, 90, api="cuGraphLaunch"))
    graphs.end(3 * SECOND_NS + 300 * MS)
    assert graphs.decide(4 * SECOND_NS)
    assert not graphs.are_windowed


PASSES_PER_S = 100
"""A tenth of the budget, at 10 µs each."""


def test_passes_beyond_their_share_of_the_budget_are_windowed() -> None:
    """Of the program that makes most of them: programs are not added up, and what was before does not count."""
    assert pytest.approx(PASSES_PER_S) == BACKWARD_SHARE * 0.01 * 1e9 / BACKWARD_NS
    passes = FrequentPasses(0.01)
    assert not passes.decide(SECOND_NS, {1: 5_000, 2: 0})
    assert not passes.decide(2 * SECOND_NS, {1: 5_090, 2: 90, 3: 90})
    assert not passes.are_windowed
    assert passes.decide(3 * SECOND_NS, {1: 5_090 + 110, 2: 90, 3: 90})
    assert passes.are_windowed


def test_a_pid_that_is_given_again_begins_anew() -> None:
    """Its total is less than that of the program that had it."""
    passes = FrequentPasses(0.01)
    passes.decide(SECOND_NS, {1: 5_000})
    assert not passes.decide(2 * SECOND_NS, {1: 90})
    assert passes.decide(3 * SECOND_NS, {1: 90 + 110})


def windows_with(passes: FrequentPasses, per_s: float, count: int, at_ns: int) -> list[bool]:
    """What is decided after each of so many windows of 0.1 s."""
    decided = []
    for number in range(count):
        begin_ns = at_ns + number * SECOND_NS
        passes.begin(begin_ns, {1: 0})
        passes.end(begin_ns + 100 * MS, {1: round(per_s / 10)})
        decided.append(passes.decide(begin_ns + 200 * MS, {1: 10_000}))
    return decided


def test_passes_are_always_seen_again_when_they_are_rare_in_many_windows() -> None:
    """Not where they are at the limit, nor after a few windows: a program may evaluate for seconds."""
    passes = FrequentPasses(0.01)
    passes.decide(SECOND_NS, {1: 0})
    assert passes.decide(2 * SECOND_NS, {1: 110})
    assert windows_with(passes, 60, 20, 10 * SECOND_NS) == [False] * 20
    assert windows_with(passes, 40, 10, 40 * SECOND_NS) == [False] * 9 + [True]
    assert not passes.are_windowed
