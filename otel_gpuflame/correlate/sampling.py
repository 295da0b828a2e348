"""Windows in strata: when launches are captured, and what the whole was. Pure: randomness comes in as a generator.

In each stratum [start, start + L) one window of length w begins at a random instant of [start - w, start + L) and is
clipped to the stratum. So every instant is covered with the same probability p = w / (L + w), the edges included, and
seen / p is an unbiased estimate of a stratum's total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_MIN_STRATA_FOR_ERROR = 3


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """One stratum with its window; all times in the same nanoseconds. Empty windows have open_ns == close_ns."""

    stratum_start_ns: int
    stratum_end_ns: int
    open_ns: int
    close_ns: int
    probability: float
    """With which any instant of the stratum was to be covered."""

    @property
    def length_ns(self) -> int:
        """Nanoseconds that the window is open."""
        return self.close_ns - self.open_ns


def plan_window(start_ns: int, stratum_ns: int, duty: float, random: Random) -> PlannedWindow:
    """The window of the stratum that begins at `start_ns`, covering a share `duty` in (0, 1] of the time on average.

    A duty of 1 is the whole stratum, probability 1.
    """
    if not 0 < duty <= 1:
        raise ValueError(f"duty must be above 0 and at most 1, not {duty}")
    end_ns = start_ns + stratum_ns
    if duty == 1:
        return PlannedWindow(start_ns, end_ns, start_ns, end_ns, 1.0)
    # From p = w / (L + w) = duty.
    window_ns = duty * stratum_ns / (1 - duty)
    begin_ns = start_ns + random.uniform(-window_ns, stratum_ns)
    open_ns = max(start_ns, round(begin_ns))
    close_ns = min(end_ns, round(begin_ns + window_ns))
    return PlannedWindow(start_ns, end_ns, open_ns, max(open_ns, close_ns), duty)


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

    The variance is that of successive differences: neighbouring strata resemble each other, so that a slow change of the
    load is not taken for an error of sampling.
    """
    scaled = [value / p for value, p in zip(seen, probabilities, strict=True)]
    total = math.fsum(scaled)
    count = len(scaled)
    if all(p == 1 for p in probabilities):
        return Estimate(total, 0.0)
    if count < _MIN_STRATA_FOR_ERROR:
        return Estimate(total, math.inf)
    differences = math.fsum((b - a) ** 2 for a, b in zip(scaled, scaled[1:], strict=False))
    variance = differences / (2 * (count - 1))
    return Estimate(total, math.sqrt(count * variance))
