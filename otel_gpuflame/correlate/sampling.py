"""Totals from sampled strata, and how far they may be off (capture/plan.py says how windows are chosen)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_MIN_STRATA_FOR_ERROR = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A total over several strata with its standard error; the error is infinite while there are too few strata."""

    total: float
    standard_error: float

    @property
    def relative_error(self) -> float:
        """Standard error as a share of the total."""
        return self.standard_error / self.total if self.total else math.inf


def estimate_total(seen: Sequence[float], probabilities: Sequence[float]) -> Estimate:
    """Total of what strata in order of time contained, from what their windows saw.

    The variance is that of successive differences: neighbouring strata resemble each other, so that a slow change of
    the load is not taken for an error of sampling.
    """
    scaled = [value / p for value, p in zip(seen, probabilities, strict=True)]
    total = math.fsum(scaled)
    count = len(scaled)
    if all(p == 1 for p in probabilities):
        return Estimate(total, 0.0)
    if count < _MIN_STRATA_FOR_ERROR:
        return Estimate(total, math.inf)
    differences = math.fsum((b - a) ** 2 for a, b in pairwise(scaled))
    variance = differences / (2 * (count - 1))
    return Estimate(total, math.sqrt(count * variance))
