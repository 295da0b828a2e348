"""Executions of sampling windows: what they are scaled to is what there was, and nothing counts twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import Executions
from otel_gpuflame.events.records import Event, SamplingWindow
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.ledger import Account
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_IDLE,
    GPU_LAUNCH,
    GPU_TIME,
    GPU_WAIT,
    SCOPE,
)
from tests.unit.pipeline.windowed import (
    MS,
    Offset,
    Recording,
    Schedule,
    aggregate,
    total,
    windowed,
)

CAPTURE: Final = Path(__file__).parents[2] / "golden" / "captures" / "h200_gpu_train.ogfcap"
STRATUM_NS: Final = 40 * MS
STEP_NS: Final = 6 * MS
"""Of the training loop."""
STRATA: Final = 7
"""The training steps take the last 0.3 s of the recording."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    """50 steps of a training loop on an H200."""
    with ReplaySource(CAPTURE, call_dtype=wire.CALL) as source:
        events: list[Event] = list(source.events())
    last_ns = max(int(e.rows["end_ns"].max()) for e in events if isinstance(e, Executions))
    return Recording(events, last_ns - 300 * MS)


def scheduled(recording: Recording, duty: float, incomplete: str = "") -> Schedule:
    """Strata over the training steps."""
    return Schedule(STRATUM_NS, duty, recording.begin_ns + STRATA * STRATUM_NS, incomplete)


def waited_ns(recording: Recording) -> int:
    """Σ of all waits."""
    return int(find_waits(recording.calls).duration_ns.sum())


def account(both: CorrelatingAggregator) -> Account:
    """The books of executions."""
    (found,) = [each for each in both.ledger.accounts() if each.kind == "execution"]
    return found


def run(
    recording: Recording, schedule: Schedule, random: Random
) -> tuple[list[Bundle], CorrelatingAggregator]:
    """What the agent would have sent."""
    return aggregate(windowed(recording, schedule, random))


def test_estimates_are_right_on_average(recording: Recording) -> None:
    """Windows at all places where they may be, evenly spaced, see in the mean what there was, to 0.5 %.

    Whatever the place: waits are complete and exact, nothing of the device is, and the books are balanced.
    """
    schedule = scheduled(recording, 1 / 3)
    truth_ns = recording.gpu_time_ns(schedule.until_ns)
    found = []
    for place in range(32):
        bundles, both = run(recording, schedule, Offset((place + 0.5) / 32))
        found.append(total(bundles, GPU_TIME, ESTIMATED_SCOPE))
        assert total(bundles, GPU_WAIT, SCOPE) == waited_ns(recording)
        assert total(bundles, GPU_TIME, SCOPE) == total(bundles, GPU_IDLE, SCOPE) == 0
        assert not both.ledger.remarks["late for their window"]
        books = account(both)
        assert books.seen == books.profiled > 0
        assert (books.dropped, books.pending) == ((), 0)
    assert max(found) > 1.2 * truth_ns > 0.8 * truth_ns > min(found)
    assert fmean(found) == pytest.approx(truth_ns, rel=0.005)


def test_waits_that_are_windowed_are_right_on_average(recording: Recording) -> None:
    """With executions they are told by what they waited for, without by the call; in the mean what there was, to 1 %.

    A wait is seen as a whole if it began in a window, so nothing of it is lost at the window's end.
    """
    schedule = replace(scheduled(recording, 1 / 3), with_waits=True)
    is_in_strata = recording.calls["start_ns"] < schedule.until_ns
    waits = find_waits(recording.calls).duration_ns
    truth_ns, after_ns = int(waits[is_in_strata].sum()), int(waits[~is_in_strata].sum())
    found = []
    for place in range(32):
        bundles, both = run(recording, schedule, Offset((place + 0.5) / 32))
        found.append(total(bundles, GPU_WAIT, ESTIMATED_SCOPE))
        assert total(bundles, GPU_WAIT, SCOPE) == after_ns
        assert not both.ledger.remarks["late for their window"]
        (books,) = [each for each in both.ledger.accounts() if each.kind == "wait"]
        assert books.seen == books.profiled > 0
    assert max(found) > 1.1 * truth_ns > 0.9 * truth_ns > min(found)
    assert fmean(found) == pytest.approx(truth_ns, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_device_works_or_idles_or_it_is_not_known(recording: Recording, seed: int) -> None:
    """Of the time that windows cover; what was launched in one may run after it, for a step at most."""
    schedule = scheduled(recording, 0.8)
    events = list(windowed(recording, schedule, Random(seed)))
    bundles, _ = aggregate(events)
    executed_ns = total(bundles, GPU_TIME, ESTIMATED_SCOPE)
    idle_ns = total(bundles, GPU_IDLE, ESTIMATED_SCOPE)
    windows = [event for event in events if isinstance(event, SamplingWindow)]
    covered_ns = sum(each.close_ns - each.open_ns for each in windows)
    told_ns = 0.8 * (executed_ns + idle_ns)
    assert 0.98 * covered_ns < told_ns < covered_ns + len(windows) * STEP_NS


def test_with_full_duty_everything_is_exact(recording: Recording) -> None:
    """Strata that follow one another without a gap: nothing is scaled."""
    schedule = scheduled(recording, 1.0)
    bundles, both = run(recording, schedule, Random(1))
    assert total(bundles, GPU_TIME, SCOPE) == recording.gpu_time_ns(schedule.until_ns)
    assert total(bundles, GPU_WAIT, SCOPE) == waited_ns(recording)
    assert not [each for each in bundles if each.scope == ESTIMATED_SCOPE]
    books = account(both)
    assert books.seen == books.profiled > 3_000


def test_windows_that_are_incomplete_are_counted_and_not_scaled(recording: Recording) -> None:
    """Nobody knows what they stand for. Launches are not concerned, nor waits."""
    schedule = scheduled(recording, 1 / 3, "other_client")
    bundles, both = run(recording, schedule, Offset(0.5))
    assert total(bundles, GPU_TIME, ESTIMATED_SCOPE) == 0
    assert total(bundles, GPU_LAUNCH, ESTIMATED_SCOPE) > 0
    assert total(bundles, GPU_WAIT, SCOPE) == waited_ns(recording)
    books = account(both)
    assert books.dropped == (("incomplete_window", books.seen),)
    assert books.profiled == books.pending == 0
    remark = "times of a process's executions are incomplete: other client"
    assert both.ledger.remarks[remark] == STRATA


def test_no_wait_has_a_kernel_that_nobody_saw_it_wait_for(recording: Recording) -> None:
    """The first wait for a stream in a window may have been for work from before: it keeps its time, and no reason."""
    full, _ = run(recording, scheduled(recording, 1.0), Random(1))
    some, _ = run(recording, scheduled(recording, 1 / 3), Offset(0.5))
    explained = [_explained_ns(bundles) for bundles in (full, some)]
    assert 0 < explained[1] < explained[0] <= waited_ns(recording)


def _explained_ns(bundles: list[Bundle]) -> int:
    """Σ of waits whose leaf says what was waited for."""
    found = 0
    for bundle in bundles:
        for profile in (p for p in bundle.profiles if p.sample_type == GPU_WAIT):
            leaves = [bundle.frames[stack[-1]].name for stack in bundle.stacks]
            is_told = np.array([name not in ("[spin]", "[blocked]") for name in leaves], np.bool_)
            found += int(profile.value[is_told[profile.stack]].sum())
    return found
