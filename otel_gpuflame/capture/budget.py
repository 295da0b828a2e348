"""How much capture a target can bear: from measured costs to a duty. Pure arithmetic.

A cost is the share of a busy thread's time that probes take: hits a second times nanoseconds a hit. Hits of all threads
of a target are added up as if one thread made them, which errs on the careful side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIN_DUTY = 0.001
"""Below this there would be a window every few minutes, which tells too little of a stratum."""
UNSEEN = 1.25
"""A hit costs a program more than BPF can measure of it: its caches are colder afterwards. On an H200, open windows
cost 1.15 (decode) and 1.2 times (train) what trap and programs took (docs/overhead.md)."""
AIM = 0.5
"""Share of the budget that we mean to use: what a target really loses scatters around what we know of it by as much."""
STALL_SHARE = 0.05
"""Of the time that we take to attach and detach, for how much we count a target as standing still: mostly we wait until
no CPU runs our programs. Measured on an H200, in the mean: 5.1 ms of 138 (decode), 5.8 of 167 (train); the intervals
end at 14 and 11 ms (docs/overhead.md)."""
SWITCHING_SHARE = 0.25
"""Share of the budget that opening and closing windows may take."""
MIN_STRATUM_NS = 10_000_000_000
MAX_STRATUM_NS = 600_000_000_000


@dataclass(frozen=True, slots=True)
class TargetCost:
    """Measured on one target: share of time lost to always-on probes, and to windowed ones while they are attached.

    `records`: to records of executions while windows are open.
    """

    always: float
    windowed: float
    records: float = 0.0

    @property
    def in_windows(self) -> float:
        """What an open window costs."""
        return self.windowed + self.records


def hit_cost(hits: int, program_ns: int, elapsed_ns: int, trap_ns: float) -> float:
    """Share of time that `hits` within `elapsed_ns` cost: the trap of each, what our programs measured, the unseen."""
    if elapsed_ns <= 0:
        return 0.0
    return UNSEEN * (hits * trap_ns + program_ns) / elapsed_ns


def stall_ns(switch_ns: float, record_ns: float) -> float:
    """For how long one window stalls a target: probes took us `switch_ns`, and executions stall it `record_ns`."""
    return STALL_SHARE * switch_ns + record_ns


def stratum_length_ns(stall_ns: float, budget: float) -> int:
    """Length of strata so that opening and closing one window each takes at most SWITCHING_SHARE of the budget."""
    if budget <= 0:
        return MAX_STRATUM_NS
    needed = stall_ns / (SWITCHING_SHARE * budget)
    return round(min(max(needed, MIN_STRATUM_NS), MAX_STRATUM_NS))


def choose_duty(costs: Iterable[TargetCost], budget: float, switching: float) -> float:
    """The largest duty at which no target loses more than AIM of `budget`, a share of its throughput.

    0 where always-on probes and switching alone reach that: then no window is opened.
    """
    duty = 1.0
    for cost in costs:
        left = AIM * budget - cost.always - switching
        if left <= 0:
            return 0.0
        if cost.in_windows > 0:
            duty = min(duty, left / cost.in_windows)
    return duty if duty >= MIN_DUTY else 0.0
