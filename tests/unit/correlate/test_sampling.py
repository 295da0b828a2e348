"""Windows in strata: every instant has the same chance, and what is estimated from them is right."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.capture.plan import plan_window
from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.sampling import estimate_total
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import Calls
from otel_gpuflame.events.wire import Kind

STEADY = Path(__file__).parents[3] / "examples" / "captures" / "h200_steady.ogfcap"
"""4 s of a training run on an H200: 70,306 launches."""
SEEDS = 1_000
NORMAL_95 = 1.6449
"""A two-sided 90 % interval leaves 5 % on each side."""


def launch_times(path: Path) -> NDArray[np.int64]:
    """Sorted start times of all kernel launches of a capture."""
    with ReplaySource(path, call_dtype=wire.CALL) as source:
        rows = np.concatenate([e.rows for e in source.events() if isinstance(e, Calls)])
    return np.sort(rows["start_ns"][rows["kind"] == Kind.LAUNCH]).astype(np.int64)


def test_estimates_of_a_real_capture_are_unbiased_and_their_errors_honest() -> None:
    """Over 1,000 seeds the mean is within 0.5 % of the truth, and 90 % intervals cover it in at least 88 %."""
    times = launch_times(STEADY)
    stratum_ns, duty = 20_000_000, 0.1
    strata = int((times[-1] - times[0]) // stratum_ns) + 1
    totals, covered = [], 0
    for seed in range(SEEDS):
        random = Random(seed)
        windows = [
            plan_window(int(times[0]) + i * stratum_ns, stratum_ns, duty, random)
            for i in range(strata)
        ]
        edges = np.searchsorted(times, [(w.open_ns, w.close_ns) for w in windows])
        estimate = estimate_total(
            [float(n) for n in edges[:, 1] - edges[:, 0]], [w.probability for w in windows]
        )
        totals.append(estimate.total)
        covered += abs(estimate.total - len(times)) <= NORMAL_95 * estimate.standard_error
    assert np.mean(totals) == pytest.approx(len(times), rel=0.005)
    assert covered / SEEDS >= 0.88


@pytest.mark.parametrize("duty", [0.01, 0.1, 0.5, 0.9])
def test_every_instant_is_covered_equally_often(duty: float) -> None:
    """Edges of a stratum are no less likely to be seen than its middle."""
    random = Random(1)
    hits = np.zeros(20)
    rounds = 40_000
    for _ in range(rounds):
        window = plan_window(0, 20_000, duty, random)
        # The middle of each of 20 slices.
        instants = np.arange(500, 20_000, 1_000)
        hits += (instants >= window.open_ns) & (instants < window.close_ns)
    # Six standard deviations of a binomial count: a fair plan fails this once in 10⁷ runs of the test.
    tolerance = 6 * math.sqrt(duty * (1 - duty) / rounds)
    assert np.abs(hits / rounds - duty).max() < tolerance


@pytest.mark.parametrize("seed", range(50))
def test_window_stays_within_its_stratum(seed: int) -> None:
    """A window is clipped to its stratum, and may be empty, never inverted."""
    window = plan_window(1_000, 10_000, 0.3, Random(seed))
    assert 1_000 <= window.open_ns <= window.close_ns <= 11_000
    assert window.length_ns == window.close_ns - window.open_ns


def test_full_duty_is_the_whole_stratum() -> None:
    """At duty 1 everything is captured, with certainty."""
    window = plan_window(5, 100, 1.0, Random(0))
    assert (window.open_ns, window.close_ns, window.probability) == (5, 105, 1.0)


@pytest.mark.parametrize("duty", [0.0, -0.1, 1.1])
def test_impossible_duty_is_refused(duty: float) -> None:
    """A duty outside (0, 1] is a mistake of the caller."""
    with pytest.raises(ValueError, match="duty"):
        plan_window(0, 100, duty, Random(0))


def test_error_is_unknown_for_few_strata() -> None:
    """Two strata say nothing about how much they differ by chance."""
    assert estimate_total([10, 12], [0.1, 0.1]).standard_error == math.inf


def test_what_is_seen_whole_has_no_error() -> None:
    """Probability 1 throughout: the total is exact."""
    estimate = estimate_total([3, 9, 4], [1.0, 1.0, 1.0])
    assert (estimate.total, estimate.standard_error) == (16, 0)


def test_error_of_nothing_is_infinite() -> None:
    """A total of 0 has no relative error."""
    assert estimate_total([0, 0, 0], [0.1, 0.1, 0.1]).relative_error == math.inf
