"""What probes and records cost targets, from totals read where windows open and close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from otel_gpuflame.capture.budget import TargetCost, hit_cost

_HALF_LIFE_NS: Final = 300_000_000_000
"""Requests come in bursts: what a window cost a minute ago, the next one may cost again, though it is quiet now."""
MEASURE_FROM_NS: Final = 25_000_000
"""A window that is cut shorter tells nothing of what a longer one costs: in some of these executions are not recorded
at all (`cupti/cost.py`). Nor does a shorter time between windows tell what is always on."""

Totals = dict[int, tuple[int, int]]
"""(hits, nanoseconds in programs) by pid."""


class CostReadings(Protocol):
    """Running totals by pid, of living targets."""

    def costs(self) -> Totals:
        """(hits, nanoseconds in programs) of each target."""

    def record_costs(self) -> dict[int, int]:
        """Nanoseconds that records of executions have cost each target."""


class CostMeter:
    """Told of each edge when it comes, in CLOCK_MONOTONIC nanoseconds. `trap_ns` a hit, `sampling` as a share of time
    are what totals do not say.
    """

    def __init__(self, readings: CostReadings, trap_ns: float, sampling: float) -> None:
        self._readings = readings
        self._trap_ns = trap_ns
        self._sampling = sampling
        self._costs: dict[int, TargetCost] = {}
        self._is_open = False
        self._edge: tuple[int, Totals] | None = None
        """The last one, and the totals then; None before the first."""
        self._between: Totals = {}
        """What came in this stratum while no window was open, which was so for `_between_ns`."""
        self._between_ns = 0
        self._ended_ns: int | None = None
        """When the last stratum ended."""
        self._records_at_open: dict[int, int] = {}
        self._open_for_ns = 0
        """How long the last window was open, until its records are counted; 0: too short to tell."""
        self.switch_ns = 0.0
        """What opening and closing a window together take us, as a running mean; 0: not known."""
        self.knows_windows = False
        """Whether a window was measured since costs began anew."""
        self.peak = 0.0
        """The most that open windows have cost a target, present or gone, less a half every _HALF_LIFE_NS."""

    @property
    def costs(self) -> Mapping[int, TargetCost]:
        """What is known of each target, by pid, as shares of a thread's time."""
        return self._costs

    def begin_window(self, now_ns: int) -> None:
        """Windowed probes are about to be attached."""
        self._add_between(now_ns, self._readings.costs())

    def open_window(self, now_ns: int) -> None:
        """They are attached, and executions recorded."""
        self._is_open, self._edge = True, (now_ns, self._readings.costs())
        self._records_at_open = self._readings.record_costs()

    def end_window(self, now_ns: int) -> None:
        """They are about to be detached."""
        if self._edge is not None and now_ns - self._edge[0] >= MEASURE_FROM_NS:
            self._open_for_ns = now_ns - self._edge[0]
            self._measure_window(now_ns, self._readings.costs())

    def close_window(self, now_ns: int) -> None:
        """They are detached."""
        self._is_open, self._edge = False, (now_ns, self._readings.costs())

    def note_switch(self, took_ns: int) -> None:
        """Opening or closing took so long."""
        both_ns = 2.0 * took_ns
        known_ns = self.switch_ns
        self.switch_ns = both_ns if known_ns == 0 else 0.75 * known_ns + 0.25 * both_ns

    def begin_anew(self, now_ns: int) -> None:
        """Other probes are always on from now on; no window is open. What is known remains until it is measured."""
        self.knows_windows = False
        self._edge = (now_ns, self._readings.costs())

    def end_stratum(self, now_ns: int) -> None:
        """Measure what was in it, and forget targets that have gone."""
        totals = self._readings.costs()
        if self._is_open:
            self._measure_window(now_ns, totals)
            self._open_for_ns = now_ns - self._edge[0] if self._edge is not None else 0
        else:
            self._add_between(now_ns, totals)
            self._measure_between()
        self._measure_records()
        if self._ended_ns is not None:
            self.peak *= 0.5 ** ((now_ns - self._ended_ns) / _HALF_LIFE_NS)
        self._ended_ns = now_ns
        self.peak = max([self.peak, *(cost.in_windows for cost in self._costs.values())])
        self._edge = (now_ns, totals)
        self._between, self._between_ns = {}, 0
        self._costs = {pid: cost for pid, cost in self._costs.items() if pid in totals}

    def _add_between(self, now_ns: int, totals: Totals) -> None:
        if self._edge is None:
            return
        self._between_ns += now_ns - self._edge[0]
        for pid, (hits, program_ns) in self._since_edge(totals).items():
            hits_before, program_before = self._between.get(pid, (0, 0))
            self._between[pid] = (hits_before + hits, program_before + program_ns)

    def _measure_between(self) -> None:
        """Cost of what is always on."""
        if self._between_ns < MEASURE_FROM_NS:
            return
        for pid, gained in self._between.items():
            self._costs[pid] = replace(
                self._known(pid), always=self._share(gained, self._between_ns)
            )

    def _measure_window(self, now_ns: int, totals: Totals) -> None:
        """Cost of all probes while a window was open."""
        if self._edge is None:
            return
        self.knows_windows = True
        for pid, gained in self._since_edge(totals).items():
            known, share = self._known(pid), self._share(gained, now_ns - self._edge[0])
            self._costs[pid] = replace(known, windowed=max(share - known.always, 0.0))

    def _measure_records(self) -> None:
        """Cost of records, which come until a little after the window's end: so they are counted with the next plan."""
        if self._open_for_ns <= 0:
            return
        before, self._records_at_open = self._records_at_open, self._readings.record_costs()
        for pid, total_ns in self._records_at_open.items():
            # Less than before: another program has that pid.
            cost = max(total_ns - before.get(pid, 0), 0) / self._open_for_ns
            self._costs[pid] = replace(self._known(pid), records=cost)
        self._open_for_ns = 0

    def _known(self, pid: int) -> TargetCost:
        return self._costs.get(pid, TargetCost(0.0, 0.0))

    def _since_edge(self, totals: Totals) -> Totals:
        """What came since the last edge. Less than before: another program has that pid, and all of it is new."""
        before = self._edge[1] if self._edge is not None else {}
        gained = {}
        for pid, (hits, program_ns) in totals.items():
            hits_before, program_before = before.get(pid, (0, 0))
            is_other = hits < hits_before
            gained[pid] = (
                hits if is_other else hits - hits_before,
                program_ns if is_other else program_ns - program_before,
            )
        return gained

    def _share(self, gained: tuple[int, int], elapsed_ns: int) -> float:
        return self._sampling + hit_cost(*gained, elapsed_ns, self._trap_ns)
