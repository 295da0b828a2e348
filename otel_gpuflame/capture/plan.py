"""Windows in strata: when launches are captured. Pure: randomness comes in as a generator.

In each stratum [start, start + L) one window of length w begins at a random instant of [start - w, start + L) and is
clipped to the stratum. So every instant is covered with the same probability p = w / (L + w), the edges included, and
seen / p is an unbiased estimate of a stratum's total (correlate/sampling.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


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
