"""Statistics of paired blocks: what a state costs beside another one, and the sum of such costs. Pure.

One unit is the order A B B A, so that a drift of the machine within a unit cancels out. Its figure is the mean
logarithm of rates in A over those in B, which is symmetric: the mean of ratios would be above 1 between two equal
states. Their mean becomes a share at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 10_000
MIN_UNITS: Final = 5
"""Fewer say nothing about their own spread."""
QUANTILES: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the durations of steps."""
OUTER: Final = 0.2
"""Share of the units at each end that the middle leaves out."""
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


class Summand(Protocol):
    """A part of a sum, known from units."""

    def found(self) -> float:
        """Its estimate. Raises ValueError with fewer than MIN_UNITS."""

    def deviations(self, draws: int, generator: np.random.Generator) -> Samples:
        """How far estimates from units drawn with replacement lie from it, widened: shape (draws,)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One summand: the mean of `samples`, one a unit, times `weight`, which is no random number."""

    samples: Samples
    weight: float = 1.0
    is_logarithm: bool = True
    """Samples are those of `loss_of_unit`: their mean counts as the share that it means."""

    def found(self) -> float:
        """See Summand."""
        _require(len(self.samples))
        return float(self._of_means(np.mean(self.samples, keepdims=True))[0])

    def deviations(self, draws: int, generator: np.random.Generator) -> Samples:
        """See Summand."""
        drawn = self._of_means(_means(self.samples, draws, generator))
        return _widening(len(self.samples)) * (drawn - self.found())

    def _of_means(self, means: Samples) -> Samples:
        return self.weight * (-np.expm1(-means) if self.is_logarithm else means)


@dataclass(frozen=True, slots=True)
class MiddleTerm:
    """One summand: the mean of the middle units, as `loss_of_unit` gives them, times `weight`.

    A neighbour on the host that disturbs a unit changes its figure by many times what is sought, either way alike: a
    fifth of the units at each end is left out. Sound as long as the figures lie symmetrically around the loss.
    """

    samples: Samples
    weight: float = 1.0

    def found(self) -> float:
        """See Summand."""
        _require(len(self.samples))
        return float(self._of(self.samples[np.newaxis])[0])

    def deviations(self, draws: int, generator: np.random.Generator) -> Samples:
        """See Summand."""
        count = len(self.samples)
        drawn = self.samples[generator.integers(0, count, (draws, count), np.int32)]
        return _widening(count) * (self._of(drawn) - self.found())

    def _of(self, drawn: Samples) -> Samples:
        outer = int(OUTER * drawn.shape[1])
        middle = np.sort(drawn, axis=1)[:, outer : drawn.shape[1] - outer].mean(axis=1)
        lost: Samples = self.weight * -np.expm1(-middle)
        return lost


@dataclass(frozen=True, slots=True)
class TypicalTerm:
    """One summand: by how much longer typical steps take in `on` blocks than in `off` blocks, times `weight`.

    Steps are typical up to the median: whatever else the machine does makes steps longer, by up to twice, and hardly
    ever shorter. The figure is the mean over QUANTILES of the logarithm of the ratio, of steps of all units together;
    a cost that not every step has (a sample in six) shifts them by its mean. What makes a few steps much longer is not
    in it.
    """

    on: Sequence[Samples]
    """Durations of steps, an array a unit."""
    off: Sequence[Samples]
    weight: float = 1.0

    def found(self) -> float:
        """See Summand."""
        _require(len(self.on))
        return self._of(np.arange(len(self.on)))

    def deviations(self, draws: int, generator: np.random.Generator) -> Samples:
        """See Summand."""
        count = len(self.on)
        chosen = generator.integers(0, count, (draws, count))
        drawn = np.array([self._of(units) for units in chosen])
        return _widening(count) * (drawn - self.found())

    def _of(self, units: NDArray[np.int64]) -> float:
        on, off = (
            np.quantile(np.concatenate([steps[unit] for unit in units]), QUANTILES)
            for steps in (self.on, self.off)
        )
        return self.weight * -math.expm1(-float(np.log(on / off).mean()))


def loss_of_unit(off_before: float, on_first: float, on_second: float, off_after: float) -> float:
    """What is lost in state B: the mean logarithm of rates in A over those in B. All four are of equally long times.

    Of each by itself: the two of A lie further apart and so differ by more, and the logarithm of their mean would show
    A faster than it is, by 0.1 to 0.3 % on an H200's host.
    """
    return (
        math.log(off_before) + math.log(off_after) - math.log(on_first) - math.log(on_second)
    ) / 2


def interval_of_sum(terms: Sequence[Summand], *, draws: int = DRAWS) -> Interval:
    """The sum of all terms: bootstrap over units, each term's by itself.

    Deviations are widened as Student's distribution is wider than the normal one, and by √(n / (n - 1)): the bootstrap
    alone covers too little below some 50 units. Raises ValueError with fewer than MIN_UNITS in a term.
    """
    generator = np.random.default_rng(0)
    value = sum(term.found() for term in terms)
    deviations = sum((term.deviations(draws, generator) for term in terms), np.zeros(draws))
    low, high = np.percentile(deviations, (_LOW, _HIGH))
    return Interval(value, value + float(low), value + float(high))


def adjusted(losses: Samples, yardstick: Samples) -> Samples:
    """Losses less what follows from the processor's own speed, found by regression over units.

    Sound as long as what is compared leaves the yardstick as it is: its own mean must hold 0. They are spread around
    their mean by what is not known of the slope, a tenth more with 12 units. Unchanged where there is no yardstick for
    each loss.
    """
    count = len(losses)
    if len(yardstick) != count or count < MIN_UNITS or not yardstick.std():
        return losses
    slope = np.cov(losses, yardstick)[0, 1] / np.var(yardstick, ddof=1)
    found: Samples = losses - slope * yardstick
    unknown = 1 + yardstick.mean() ** 2 / yardstick.var()
    mean = found.mean()
    spread: Samples = mean + (found - mean) * math.sqrt(unknown * (count - 1) / (count - 2))
    return spread


def interval_of(samples: Samples, *, is_logarithm: bool = True) -> Interval:
    """The mean of one sample a unit."""
    return interval_of_sum([Term(samples, is_logarithm=is_logarithm)])


def _means(samples: Samples, draws: int, generator: np.random.Generator) -> Samples:
    """Means of `draws` samples drawn with replacement."""
    chosen = generator.integers(0, len(samples), (draws, len(samples)), np.int32)
    means: Samples = samples[chosen].mean(axis=1)
    return means


def _require(units: int) -> None:
    if units < MIN_UNITS:
        raise ValueError(f"{units} units are too few: give it more seconds")


def _widening(count: int) -> float:
    student = float(np.interp(1 / (count - 1), _WIDER_AT, _WIDER_BY))
    return student * math.sqrt(count / (count - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """What the agent costs in steady state, by part."""

    rare: Summand
    """Lost to probes that are always on, beside nothing attached."""
    window: Callable[[float], Summand]
    """Lost in an open window, beside probes that are always on; of a weight."""
    system_calls: Samples
    """Lost since tracepoints make system calls slower, several measurements of the same."""
    switching_ns: Samples
    """Time lost to opening a window and closing it."""
    duty: float
    """What the agent chose."""
    stratum_ns: float
    """There is one window in each."""

    def loss(self, *, draws: int = DRAWS) -> Interval:
        """Share of throughput lost, all parts together. They are added, which is more than their product."""
        terms = [self.rare, Term(self.system_calls, is_logarithm=False)]
        if self.duty > 0:
            terms.append(self.window(self.duty))
        if 0 < self.duty < 1:
            terms.append(Term(self.switching_ns, 1 / self.stratum_ns, is_logarithm=False))
        return interval_of_sum(terms, draws=draws)
