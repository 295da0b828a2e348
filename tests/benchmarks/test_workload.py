"""The benchmarks' load is what docs/overhead.md says, and folding repeats changes no sum."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.correlate.repeats import fold_repeats
from otel_gpuflame.events.records import CallArray, Calls, CaptureStart
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.aggregate import Aggregator
from tests.benchmarks import workload

IRRELEVANT = ("start_ns", "tid", "thread_pointer", "stream", "grid", "block")


def counted(parts: list[tuple[CallArray, NDArray[np.int64]]]) -> Counter[bytes]:
    """How often each call was made, whatever the time and the thread."""
    found: Counter[bytes] = Counter()
    for rows, counts in parts:
        same = rows.copy()
        for name in IRRELEVANT:
            same[name] = 0
        for row, count in zip(same, counts.tolist(), strict=True):
            found[row.tobytes()] += count
    return found


def test_stacks_are_distinct_and_of_the_stated_depth() -> None:
    """There are 10,000 different stacks of 40 frames each, with different identities."""
    stacks = workload.stacks().stacks
    assert len({stack.frames for stack in stacks}) == len({s.key for s in stacks}) == 10_000
    assert {len(stack.frames) for stack in stacks} == {40}


def test_window_has_a_sample_of_three_types_for_every_stack() -> None:
    """The encoded window holds 30,000 samples over 10,000 different stacks."""
    window = workload.window()
    assert [len(set(profile.stack.tolist())) for profile in window.profiles] == [10_000] * 3
    assert len(set(window.stacks)) == 10_000
    assert {len(stack) for stack in window.stacks} == {40}


def test_calls_come_from_two_processes_fifty_kernels_and_a_hundred_spans() -> None:
    """The calls of the load are spread as the document says."""
    rows = workload.call_templates()
    launches = rows[rows["kind"] == Kind.LAUNCH]
    assert len(np.unique(rows["tgid"])) == 2
    assert len(np.unique(launches["object"])) == 50
    assert len(np.unique(rows["span_id"], axis=0)) == 100


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_folding_keeps_every_call(size: int) -> None:
    """Each call is there as often as it was made, and calls with a duration are not touched."""
    stacks = np.random.default_rng(size).integers(0, 500, size)
    rows = workload.calls(stacks, 1_000, 1_000)
    rows["tid"] = np.arange(size)
    parts = fold_repeats(rows)
    assert counted(parts) == counted([(rows, np.ones(size, np.int64))])
    timed = np.concatenate([part[part["end_ns"] > 0] for part, _ in parts])
    assert timed.tobytes() == rows[rows["end_ns"] > 0].tobytes()


def test_folding_leaves_few_rows_of_many_repeats() -> None:
    """Of calls that return at once, one of each remains."""
    rows = workload.calls(np.full(10_000, 5), 0, 1_000)
    (folded, counts), (others, _) = fold_repeats(rows)
    assert (len(folded), counts.tolist(), len(others)) == (1, [10_000], 0)


def test_calls_that_are_not_alike_stay_apart() -> None:
    """A call with unreadable arguments is not taken for one like it whose arguments were read."""
    rows = workload.calls(np.full(10_000, 5), 0, 1_000)
    rows["flags"][::2] |= int(CallFlag.ARGS_UNREADABLE)
    (folded, counts), _ = fold_repeats(rows)
    assert (len(folded), counts.tolist()) == (2, [5_000, 5_000])


def test_large_and_small_batches_give_the_same_profiles() -> None:
    """What is folded and cut into pieces on the way adds up to what single small batches do."""

    def profiled(size: int) -> list[tuple[tuple[str, int], ...]]:
        aggregator = Aggregator()
        aggregator.feed(CaptureStart(0, 0, ()))
        for event in (workload.stacks(), workload.names(), workload.targets()):
            aggregator.feed(event)
        for begin in range(0, len(rows), size):
            aggregator.feed(Calls(rows[begin : begin + size]))
        bundles = aggregator.finish()
        return [tuple((p.sample_type.type, p.total) for p in b.profiles) for b in bundles]

    rows = workload.calls(np.random.default_rng(3).integers(0, 10_000, 200_000), 0, 1_000)
    assert profiled(200_000) == profiled(5_000)
