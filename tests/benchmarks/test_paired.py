"""What is said of the agent's overhead is what is true of it, where the truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.benchmarks.paired import (
    Decomposition,
    MiddleTerm,
    Samples,
    Term,
    TypicalTerm,
    adjusted,
    interval_of,
    interval_of_sum,
    loss_of_unit,
)

DRAWS = 1_000
SESSIONS = 400


def noisy_losses(
    share: float, units: int, spread: float, generator: np.random.Generator
) -> Samples:
    """Units of four blocks that vary independently, with a processor of another speed in some of them."""
    speed = np.exp(spread * generator.standard_normal((units, 4)))
    jumps = generator.random(speed.shape) < 0.02
    speed[jumps] *= generator.choice([0.87, 1.15], jumps.sum())
    speed[:, 1:3] *= 1 - share
    return np.array([loss_of_unit(*unit) for unit in speed.tolist()])


@pytest.mark.parametrize("term", [Term, MiddleTerm])
@pytest.mark.parametrize("units", [12, 40, 150])
def test_interval_of_the_sum_covers_the_truth_as_often_as_it_says(
    units: int, term: type[Term | MiddleTerm]
) -> None:
    """In 400 sessions of which the truth is known, 95 % intervals of the sum hold it in 92 to 98.5 %."""
    generator = np.random.default_rng(units)
    rare, window, switching_ns, duty, stratum_ns = 0.004, 0.2, 30e6, 0.05, 12e9
    system_calls = 0.0002
    truth = rare + duty * window + system_calls + switching_ns / stratum_ns
    covered = 0
    for _ in range(SESSIONS):
        found = Decomposition(
            rare=term(noisy_losses(rare, units, 0.03, generator)),
            window=partial(term, noisy_losses(window, units, 0.05, generator)),
            system_calls=system_calls + 2e-5 * generator.standard_normal(12),
            switching_ns=switching_ns + 20e6 * generator.standard_normal(units),
            duty=duty,
            stratum_ns=stratum_ns,
        ).loss(draws=DRAWS)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / SESSIONS <= 0.985


def test_the_middle_is_narrower_where_some_units_are_disturbed() -> None:
    """One in five is slower or faster by up to a third in one block: intervals are half as wide, and still right."""
    generator = np.random.default_rng(5)
    covered, widths = 0, []
    for _ in range(100):
        losses = noisy_losses(0.004, 150, 0.02, generator)
        disturbed = generator.random(150) < 0.2
        losses[disturbed] += generator.uniform(-0.3, 0.3, disturbed.sum())
        mean, middle = (interval_of_sum([term(losses)], draws=DRAWS) for term in (Term, MiddleTerm))
        covered += middle.low <= 0.004 <= middle.high
        widths.append((middle.high - middle.low) / (mean.high - mean.low))
    assert 90 <= covered <= 99
    assert np.mean(widths) < 0.6


def test_equal_states_show_no_difference() -> None:
    """Blocks that vary by 10 % around the same rate give ratios around 1, not above it."""
    losses = noisy_losses(0.0, 40_000, 0.1, np.random.default_rng(1))
    found = interval_of(losses).as_ratio()
    assert found.low < 1 < found.high
    assert found.high - found.low < 0.01


def test_drift_of_the_machine_is_no_loss() -> None:
    """A rate that falls evenly through a unit counts as no difference between its states."""
    assert loss_of_unit(104.0, 103.0, 102.0, 101.0) == pytest.approx(0, abs=1e-4)


def test_blocks_that_lie_further_apart_do_not_look_faster() -> None:
    """A processor of twice the speed for a while, in one of the outer blocks or in both inner ones: no difference."""
    units = [(1.0, 1.0, 1.0, 2.0), (2.0, 1.0, 1.0, 1.0), (1.0, 2.0, 2.0, 1.0), (1.0, 1.0, 1.0, 1.0)]
    assert sum(loss_of_unit(*unit) for unit in units) == pytest.approx(0)


def test_mean_of_logarithms_becomes_a_share() -> None:
    """Units in which 30 % of the throughput is lost are a loss of 30 %."""
    losses = np.full(10, loss_of_unit(10.0, 7.0, 7.0, 10.0))
    found = interval_of(losses)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))
    assert found.as_ratio().value == pytest.approx(0.7)


def test_terms_are_added_with_their_weights() -> None:
    """Terms without spread give the sum of their weighted means, and no interval."""
    found = interval_of_sum(
        [
            Term(np.full(5, 2.0), 3.0, is_logarithm=False),
            Term(np.full(9, -math.log(0.5)), 0.1),
        ]
    )
    assert (found.value, found.low, found.high) == pytest.approx((6.05, 6.05, 6.05))


def test_full_capture_pays_for_no_switching_and_none_for_no_window() -> None:
    """At duty 1 nothing is switched; at duty 0 only what is always on costs."""
    parts = Decomposition(
        rare=Term(np.full(6, loss_of_unit(1.0, 0.99, 0.99, 1.0))),
        window=partial(Term, np.full(6, loss_of_unit(1.0, 0.8, 0.8, 1.0))),
        system_calls=np.full(6, 0.001),
        switching_ns=np.full(6, 1e9),
        duty=1.0,
        stratum_ns=10e9,
    )
    full, none, half = (replace(parts, duty=duty).loss() for duty in (1.0, 0.0, 0.5))
    assert full.value == pytest.approx(0.011 + 0.2)
    assert none.value == pytest.approx(0.011)
    assert half.value == pytest.approx(0.011 + 0.1 + 0.1)


def test_too_few_units_are_refused() -> None:
    """Four units say nothing about their own spread."""
    with pytest.raises(ValueError, match="4 units are too few"):
        interval_of(np.zeros(4))


def test_what_the_yardstick_explains_is_taken_away() -> None:
    """Losses that follow the processor's speed three parts in four are found four times as exactly, and unshifted."""
    generator = np.random.default_rng(5)
    speed = generator.normal(0, 0.05, 400)
    losses = 0.008 + 1.3 * speed + generator.normal(0, 0.005, 400)
    found = adjusted(losses, speed)
    assert found.std() < losses.std() / 4
    assert found.mean() == pytest.approx(0.008, abs=0.001)


def losses_beside_a_yardstick(
    share: float, units: int, generator: np.random.Generator
) -> tuple[Samples, Samples]:
    """As training steps on an H200's host: the yardstick knows two parts in three of why units differ, and is noisy."""
    speed = 0.05 * generator.standard_t(4, units) / 2**0.5
    own = 0.025 * generator.standard_normal(units)
    yardstick = 1.5 * speed + 0.06 * generator.standard_normal(units)
    return -math.log1p(-share) + speed + own, yardstick


@pytest.mark.parametrize("term", [Term, MiddleTerm])
@pytest.mark.parametrize("units", [12, 40, 250])
def test_intervals_of_adjusted_losses_cover_the_truth_as_often_as_they_say(
    units: int, term: type[Term | MiddleTerm]
) -> None:
    """In 400 sessions, with a slope that is found anew in each: 95 % intervals hold the truth in 92 to 98.5 %."""
    generator = np.random.default_rng(units)
    covered = 0
    for _ in range(SESSIONS):
        losses = adjusted(*losses_beside_a_yardstick(0.006, units, generator))
        found = interval_of_sum([term(losses)], draws=DRAWS)
        covered += found.low <= 0.006 <= found.high
    assert 0.92 <= covered / SESSIONS <= 0.985


@pytest.mark.parametrize("yardstick", [np.array([]), np.zeros(40)])
def test_without_a_yardstick_losses_stay_as_they_are(yardstick: np.ndarray) -> None:
    """None was measured, or it never changed."""
    losses = np.linspace(0, 0.1, 40)
    assert adjusted(losses, yardstick) is losses


def noisy_steps(
    units: int, added_ns: float, generator: np.random.Generator
) -> tuple[list[Samples], list[Samples]]:
    """On and off blocks of 40 steps of about 2 ms: the processor is slower for some units, neighbours disturb others.

    In on blocks each step takes longer by `added_ns`, and one in five by five times as much again.
    """
    blocks: tuple[list[Samples], list[Samples]] = ([], [])
    for _ in range(units):
        slower = 1 + 0.02 * abs(generator.standard_normal())
        for steps, is_on in zip(blocks, (True, False), strict=True):
            disturbed = 1 + (generator.random(40) < 0.2) * 0.5 * generator.random()
            ns = 2e6 * slower * disturbed * np.exp(0.02 * generator.standard_normal(40))
            steps.append(ns + is_on * added_ns * (1 + 5 * (generator.random(40) < 0.2)))
    return blocks


def test_interval_of_typical_steps_covers_the_truth_as_often_as_it_says() -> None:
    """Steps longer by 6 µs, and one in five by 36 µs: 12 µs in the mean, in 100 sessions of 40 units."""
    generator = np.random.default_rng(3)
    truth = 1 - 2e6 / (2e6 + 12_000)
    covered = 0
    for _ in range(100):
        found = interval_of_sum([TypicalTerm(*noisy_steps(40, 6_000, generator))], draws=200)
        covered += found.low <= truth <= found.high
    assert 90 <= covered <= 99


def test_typical_steps_of_equal_states_show_no_difference() -> None:
    """Many units of equal blocks: below 0.1 % either way."""
    found = interval_of_sum(
        [TypicalTerm(*noisy_steps(1_000, 0, np.random.default_rng(4)))], draws=100
    )
    assert abs(found.value) < 0.001


def test_typical_steps_need_units_too() -> None:
    """Four units say nothing about their own spread."""
    with pytest.raises(ValueError, match="4 units are too few"):
        interval_of_sum([TypicalTerm(*noisy_steps(4, 0, np.random.default_rng(4)))])
