"""From measured costs to a duty."""

from __future__ import annotations

import pytest

from otel_gpuflame.capture.budget import (
    AIM,
    MAX_STRATUM_NS,
    MIN_STRATUM_NS,
    UNSEEN,
    TargetCost,
    choose_duty,
    hit_cost,
    stall_ns,
    stratum_length_ns,
)


def test_cost_is_trap_and_program_over_time_and_what_nobody_sees() -> None:
    """10,000 hits in a second at 1 µs each, and 20 ms in programs: 3 %, and a share of that."""
    assert hit_cost(10_000, 20_000_000, 1_000_000_000, 1_000.0) == pytest.approx(0.03 * UNSEEN)
    assert UNSEEN > 1


def test_no_time_no_cost() -> None:
    """An interval of no length has no rate."""
    assert hit_cost(5, 5, 0, 1_000.0) == 0


@pytest.mark.parametrize(
    ("costs", "switching", "duty"),
    [
        ([], 0.0, 1.0),
        ([TargetCost(0.0, 0.0)], 0.0, 1.0),
        ([TargetCost(0.0, 0.005)], 0.0, 1.0),
        ([TargetCost(0.0, 0.1)], 0.0, 0.1),
        ([TargetCost(0.004, 0.1)], 0.001, 0.05),
        ([TargetCost(0.0, 0.02), TargetCost(0.0, 0.2)], 0.0, 0.05),
        ([TargetCost(0.01, 0.1)], 0.0, 0.0),
        ([TargetCost(0.0, 0.1)], 0.02, 0.0),
        ([TargetCost(0.0, 100.0)], 0.0, 0.0),
    ],
)
def test_duty_is_what_the_budget_leaves(
    costs: list[TargetCost], switching: float, duty: float
) -> None:
    """The target that suffers most decides; nothing is opened where nothing is left, or too little to learn from."""
    assert choose_duty(costs, 0.01 / AIM, switching) == pytest.approx(duty)


def test_strata_grow_with_what_switching_costs() -> None:
    """60 ms a window within a quarter of 1 %: 24 s; cheap switching stays at the minimum."""
    assert stratum_length_ns(60e6, 0.01) == 24_000_000_000
    assert stall_ns(200e6, 16e6) == 26e6
    assert stratum_length_ns(1e3, 0.01) == MIN_STRATUM_NS
    assert stratum_length_ns(1e12, 0.01) == MAX_STRATUM_NS
    assert stratum_length_ns(1e6, 0.0) == MAX_STRATUM_NS
