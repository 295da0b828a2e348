"""Statistics of paired blocks: what a state costs beside another one, and the sum of such costs. Pure.

One unit is the order A B B A: half a block in state A, a block in B, half a block in A, so that a drift of the machine
within a unit cancels out. Its figure is the logarithm of the mean rate in A over the rate in B, which is symmetric:
the mean of ratios would be above 1 between two equal states. Their mean becomes a share at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 10_000
MIN_UNITS: Final = 5
"""Fewer say nothing about their own spread."""
_LOW, _HIGH = 2.5, 97.5
# Two-sided 95 % of Student's distribution over 1.96, by 1 / degrees of freedom: interpolated, exact to 1 %.
_WIDER_AT: Final = (0.0, 1 / 120, 1 / 60, 1 / 30, 1 / 20, 1 / 10, 1 / 6, 1 / 4)
_WIDER_BY: Final = (1.0, 1.0102, 1.0206, 1.0420, 1.0643, 1.1368, 1.2485, 1.4166)

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def as_ratio(self) -> Interval:
        """From a loss to what is left."""
        return Interval(1 - self.value, 1 - self.high, 1 - self.low)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand: the mean of `samples`, one a unit, times `weight`, which is no random number."""

    samples: Samples
    weight: float = 1.0
    is_logarithm: bool = True
    """Samples are those of `loss_of_unit`: their mean counts as the share that it means."""

    def of_means(self, means: Samples) -> Samples:
        """Summands for means of samples."""
        return self.weight * (-np.expm1(-means) if self.is_logarithm else means)


def loss_of_unit(off_before: float, on: float, off_after: float) -> float:
    """What is lost in state B: the logarithm of (rate in A ÷ rate in B). B's block is as long as both of A's."""
    return math.log((off_before + off_after) / (2 * on))


def interval_of_sum(terms: Sequence[Term], *, draws: int = DRAWS) -> Interval:
    """The sum of all terms' means times their weights: bootstrap over units, each term's by itself.

    Deviations are widened as Student's distribution is wider than the normal one, and by √(n / (n - 1)): the bootstrap
    alone covers too little below some 50 units. Raises ValueError with fewer than MIN_UNITS in a term.
    """
    generator = np.random.default_rng(0)
    value, deviations = 0.0, np.zeros(draws)
    for term in terms:
        count = len(term.samples)
        if count < MIN_UNITS:
            raise ValueError(f"{count} units are too few: give it more seconds")
        found = term.of_means(np.mean(term.samples, keepdims=True))[0]
        drawn = term.of_means(_means(term.samples, draws, generator))
        value += float(found)
        deviations += _widening(count) * (drawn - found)
    low, high = np.percentile(deviations, (_LOW, _HIGH))
    return Interval(value, value + float(low), value + float(high))


def adjusted(losses: Samples, yardstick: Samples) -> Samples:
    """Losses less what follows from the processor's own speed, found by regression over units.

    Sound as long as what is compared leaves the yardstick as it is: its own mean must hold 0. Unchanged where there is
    no yardstick for each loss.
    """
    if len(yardstick) != len(losses) or len(losses) < MIN_UNITS or not yardstick.std():
        return losses
    slope = np.cov(losses, yardstick)[0, 1] / np.var(yardstick, ddof=1)
    found: Samples = losses - slope * yardstick
    return found


def interval_of(samples: Samples, *, is_logarithm: bool = True) -> Interval:
    """The mean of one sample a unit."""
    return interval_of_sum([Term(samples, is_logarithm=is_logarithm)])


def _means(samples: Samples, draws: int, generator: np.random.Generator) -> Samples:
    """Means of `draws` samples drawn with replacement."""
    chosen = generator.integers(0, len(samples), (draws, len(samples)), np.int32)
    means: Samples = samples[chosen].mean(axis=1)
    return means


def _widening(count: int) -> float:
    student = float(np.interp(1 / (count - 1), _WIDER_AT, _WIDER_BY))
    return student * math.sqrt(count / (count - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """What the agent costs in steady state, by part. Samples are one a unit, the first two from `loss_of_unit`."""

    rare: Samples
    """Lost to probes that are always on, beside nothing attached."""
    window: Samples
    """Lost in an open window, beside probes that are always on."""
    switching_ns: Samples
    """Time lost to opening a window and closing it."""
    duty: float
    """What the agent chose."""
    stratum_ns: float
    """There is one window in each."""

    def loss(self, *, draws: int = DRAWS) -> Interval:
        """Share of throughput lost, all parts together. They are added, which is more than their product."""
        terms = [Term(self.rare)]
        if self.duty > 0:
            terms.append(Term(self.window, self.duty))
        if 0 < self.duty < 1:
            terms.append(Term(self.switching_ns, 1 / self.stratum_ns, is_logarithm=False))
        return interval_of_sum(terms, draws=draws)
