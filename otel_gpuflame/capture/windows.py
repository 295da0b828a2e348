"""Opens and closes windows on the always-on capture, and chooses the duty from what probes were measured to cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from otel_gpuflame.capture.budget import (
    MAX_STRATUM_NS,
    TargetCost,
    choose_duty,
    stall_ns,
    stratum_length_ns,
)
from otel_gpuflame.capture.cost_meter import MEASURE_FROM_NS, CostMeter, CostReadings
from otel_gpuflame.capture.plan import PlannedWindow, plan_window
from otel_gpuflame.events.records import SamplingWindow

logger = logging.getLogger(__name__)

FIRST_WINDOW: Final = "the first window is open: calls are captured from now on"

_PPB: Final = 1_000_000_000
_FIRST_STRATUM_NS: Final = 2_000_000_000
"""Nothing is known of the costs yet: a short stratum with a small window, to measure."""
_FIRST_DUTY: Final = 0.05
_LEAST_NEEDED: Final = 0.005
"""Where waits, launches of graphs or backward passes are windowed there are windows, whatever the budget says: else
nothing would be known of them."""
_RISE: Final = 4.0
"""A duty rises at most so many times over from one stratum to the next: what a short window has measured wrongly, or
just before a target began its work, costs a target four times its share for one stratum at most."""
_ASK_AGAIN_NS: Final = 5_000_000_000
_MAX_LATE_NS: Final = 1_000_000_000
"""A stratum begins where the last one ended, unless we noticed that much later: the host may have slept."""
_MAX_LATE_OPEN_NS: Final = 60_000_000_000
"""Where everything is captured all the time: calls are complete however late the next stratum is announced."""
_KILL_FACTOR: Final = 2.0
_KILL_AFTER_STRATA: Final = 3


def length_with_window_ns(least_ns: int, switch_ns: float, duty: float) -> int:
    """Of a stratum: at least `least_ns`, and so long that half of its window is left to capture and to measure in.

    Attaching takes a part of each window.
    """
    needed_ns = switch_ns + 2 * MEASURE_FROM_NS
    return round(min(max(least_ns, needed_ns / duty), MAX_STRATUM_NS))


class Probes(CostReadings, Protocol):
    """What is attached and detached, and what it costs. Times are CLOCK_MONOTONIC nanoseconds."""

    def choose_always_on(self, now_ns: int) -> bool:
        """Whether what is windowed from now on has changed. While no window is open."""

    @property
    def waits_are_windowed(self) -> bool:
        """Whether calls that may wait are windowed."""

    @property
    def graph_launches_are_windowed(self) -> bool:
        """Whether launches of graphs are."""

    @property
    def need_windows(self) -> bool:
        """Whether something is windowed of which only windows tell how often it happens."""

    @property
    def lead_ns(self) -> int:
        """How long before a window `open_window` is to be called."""

    def open_window(self) -> None:
        """Attach windowed probes."""

    def record(self, close_ns: int | None) -> None:
        """Have executions recorded until `close_ns` (None: until the window is closed)."""

    def close_window(self) -> None:
        """Have no executions recorded, and detach windowed probes."""

    def record_switch_ns(self) -> int:
        """What it stalls a target to begin and to end recording executions."""


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """`budget` is the share of a target's throughput that capture may cost; `duty` overrides what follows from it."""

    budget: float = 0.01
    duty: float | None = None
    trap_ns: float = 1_000.0
    """What a probe costs without its program; measured at start."""
    sampling: float = 0.0
    """Share of a busy thread's time that the timer of CPU samples takes, their program apart; measured at start."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What was decided last, for metrics, and from which costs of targets by pid."""

    duty: float = 0.0
    stratum_ns: int = _FIRST_STRATUM_NS
    switch_ns: float = 0.0
    costs: Mapping[int, TargetCost] = field(default_factory=dict)
    killed: bool = False

    def overhead(self, pid: int) -> float:
        """Estimated share of a target's throughput that capture costs at the present duty."""
        cost = self.costs.get(pid)
        return 0.0 if cost is None else cost.always + self.duty * cost.in_windows


class WindowControl:
    """A state machine driven by `step`: it reads no clock of its own but the one given."""

    def __init__(self, probes: Probes, options: BudgetOptions, random: Random) -> None:
        self._probes = probes
        self._options = options
        self._random = random
        self._meter = CostMeter(probes, options.trap_ns, options.sampling)
        self._duty = 0.0
        self._stratum_ns = _FIRST_STRATUM_NS
        self._killed = False
        self._plan: PlannedWindow | None = None
        self._is_open = False
        self._announced = False
        self._strata_above_limit = 0

    @property
    def state(self) -> BudgetState:
        """As it is now."""
        return BudgetState(
            duty=self._duty,
            stratum_ns=self._stratum_ns,
            switch_ns=self._meter.switch_ns,
            costs=self._meter.costs,
            killed=self._killed,
        )

    @property
    def next_edge_ns(self) -> int | None:
        """When `step` has something to do next; None while nothing is planned."""
        if self._plan is None:
            return None
        if not self._announced:
            return self._plan.open_ns - self._probes.lead_ns
        return self._plan.close_ns if self._is_open else self._plan.stratum_end_ns

    def step(self, now_ns: int, clock: Clock) -> list[SamplingWindow]:
        """Do what is due. Returns the window that opened, if one did: before any call that it covers."""
        if self._killed:
            return []
        plan = self._plan
        if plan is not None and self._is_open and now_ns >= plan.close_ns and plan.probability < 1:
            self._close(clock)
        if plan is None or now_ns >= plan.stratum_end_ns:
            plan = self._next_plan(self._arranged(now_ns, clock), clock)
            if plan is None:
                return []
        if self._announced or now_ns < plan.open_ns - self._probes.lead_ns:
            return []
        self._announced = True
        return [self._open(plan, clock)]

    def stop(self, clock: Clock) -> None:
        """Detach; the current stratum counts as far as it got."""
        if self._is_open:
            self._close(clock)
        self._plan = None

    def _arranged(self, now_ns: int, clock: Clock) -> int:
        """Choose what is always on in the stratum that begins; returns when it does. `now_ns` is the end of the last.

        After a change costs are others, and so are measured anew. To attach and to detach takes 0.2 s, in which calls
        are seen or not: that time is in no stratum.
        """
        self._meter.end_stratum(now_ns)
        if (
            self._is_open
            or self._options.duty is not None
            or not self._probes.choose_always_on(now_ns)
        ):
            return now_ns
        self._plan = None
        arranged_ns = clock()
        self._meter.begin_anew(arranged_ns)
        return arranged_ns

    def _next_plan(self, now_ns: int, clock: Clock) -> PlannedWindow | None:
        is_known = self._meter.knows_windows or self._options.duty is not None
        first = self._meter.switch_ns == 0 or not is_known
        duty = _FIRST_DUTY if first else self._choose_duty()
        if self._probes.need_windows:
            duty = max(duty, _LEAST_NEEDED)
        if self._options.duty is not None:
            duty = self._options.duty
        self._duty = duty
        self._announced = False
        if self._watch_limit():
            return None
        if duty <= 0:
            # Always-on probes alone use up the budget: ask again soon, which costs the targets nothing.
            end_ns = now_ns + _ASK_AGAIN_NS
            self._plan = PlannedWindow(now_ns, end_ns, now_ns, now_ns, 0.0)
            self._announced = True
            return None
        if duty < 1 and self._is_open:
            self._close(clock)
        # Without a gap: what is called between two strata would be in none of them.
        late_ns = now_ns - self._plan.stratum_end_ns if self._plan is not None else 0
        stays_open = self._is_open and duty == 1
        is_in_time = 0 <= late_ns < (_MAX_LATE_OPEN_NS if stays_open else _MAX_LATE_NS)
        start_ns = now_ns - late_ns if is_in_time else now_ns
        least_ns = _FIRST_STRATUM_NS if first else self._stratum_ns
        length_ns = length_with_window_ns(least_ns, self._meter.switch_ns, duty)
        length_ns += now_ns - start_ns if stays_open else 0
        self._plan = plan_window(start_ns, length_ns, duty, self._random)
        return self._plan

    def _open(self, plan: PlannedWindow, clock: Clock) -> SamplingWindow:
        if plan.length_ns == 0:
            return self._announce(plan, plan.open_ns, plan.probability)
        opened_ns = plan.open_ns
        if not self._is_open:
            started_ns = clock()
            self._meter.begin_window(started_ns)
            self._probes.open_window()
            opened_ns = max(plan.open_ns, clock())
            # Not earlier: what is recorded must lie in the window that is announced.
            self._probes.record(None if plan.probability == 1 else plan.close_ns)
            self._meter.open_window(opened_ns)
            if self._meter.switch_ns == 0:
                logger.info(FIRST_WINDOW)
            self._meter.note_switch(clock() - started_ns - self._probes.lead_ns)
            self._is_open = True
        length_ns = max(plan.close_ns - opened_ns, 0)
        # Attaching took a part of what was planned. Where all is captured, what was before counts as not yet begun.
        probability = plan.probability
        if probability < 1:
            probability *= length_ns / plan.length_ns
        return self._announce(plan, min(opened_ns, plan.close_ns), probability)

    def _announce(self, plan: PlannedWindow, open_ns: int, probability: float) -> SamplingWindow:
        return SamplingWindow(
            stratum_start_ns=plan.stratum_start_ns,
            stratum_end_ns=plan.stratum_end_ns,
            open_ns=open_ns,
            close_ns=plan.close_ns,
            probability_ppb=max(1, round(probability * _PPB)),
            with_waits=plan.probability < 1 and self._probes.waits_are_windowed,
            with_graph_launches=plan.probability < 1 and self._probes.graph_launches_are_windowed,
        )

    def _close(self, clock: Clock) -> None:
        started_ns = clock()
        self._meter.end_window(started_ns)
        self._probes.close_window()
        closed_ns = clock()
        self._meter.note_switch(closed_ns - started_ns)
        self._meter.close_window(closed_ns)
        self._is_open = False

    def _choose_duty(self) -> float:
        budget = self._options.budget
        costs = [*self._meter.costs.values(), TargetCost(0.0, self._meter.peak)]
        stalled_ns = stall_ns(self._meter.switch_ns, self._probes.record_switch_ns())
        self._stratum_ns = stratum_length_ns(stalled_ns, budget)
        duty = choose_duty(costs, budget, stalled_ns / self._stratum_ns)
        # Where all can be captured all the time nothing is switched.
        if choose_duty(costs, budget, 0.0) == 1:
            duty = 1.0
        return min(duty, _RISE * max(self._duty, _FIRST_DUTY))

    def _watch_limit(self) -> bool:
        """The kill switch: always-on probes above twice the budget in three strata in a row."""
        worst = max((cost.always for cost in self._meter.costs.values()), default=0.0)
        above = worst > _KILL_FACTOR * self._options.budget
        self._strata_above_limit = self._strata_above_limit + 1 if above else 0
        if self._strata_above_limit < _KILL_AFTER_STRATA:
            return False
        self._killed = True
        self._plan = None
        logger.error(
            "kill switch: always-on probes cost a target %.1f %% of its time, the budget is %.1f %%; "
            "capture stops until SIGUSR2",
            100 * worst,
            100 * self._options.budget,
        )
        return True


class Clock(Protocol):
    """CLOCK_MONOTONIC in nanoseconds."""

    def __call__(self) -> int:
        """The time now."""
