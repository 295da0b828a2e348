"""What is probed always and what in windows: owns the windows, and what is known of how often calls are made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random

from otel_gpuflame.capture.attachments import PASSES_LEAD_NS, Attachments
from otel_gpuflame.capture.bpf.backend import CaptureBackend
from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.frequent import (
    FrequentCalls,
    FrequentPasses,
    RepeatedNames,
    frequent_graph_launches,
    frequent_waits,
)
from otel_gpuflame.capture.live.device_side import DeviceSide
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.capture.windows import BudgetOptions, BudgetState, WindowControl
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, SamplingWindow


class Probing:
    """Does what `windows.WindowControl` decides (it is its `Probes`). Without a `budget` all is probed always."""

    def __init__(
        self,
        kernel: CaptureBackend,
        attachments: Attachments,
        targets: Targets,
        devices: DeviceSide,
        budget: BudgetOptions | None,
    ) -> None:
        self._kernel = kernel
        self._attachments = attachments
        self._targets = targets
        self._devices = devices
        self._names = RepeatedNames(budget.budget) if budget is not None else None
        self._calls: dict[ProbeGroup, FrequentCalls] = {}
        if budget is not None:
            self._calls[ProbeGroup.WAIT] = frequent_waits(budget.budget)
            self._calls[ProbeGroup.GRAPH] = frequent_graph_launches(budget.budget)
        # Without a budget as well as where passes are not seen, nothing of them is chosen.
        chooses_passes = budget is not None and attachments.sees_passes
        self._passes = FrequentPasses(budget.budget) if budget and chooses_passes else None
        self.control: WindowControl | None = None
        """Opens and closes windows; None where nobody does."""
        if budget is not None:
            self.control = WindowControl(self, budget, Random())  # noqa: S311 (no secret)

    @property
    def budget_state(self) -> BudgetState | None:
        """What was decided last about windows; None without a budget."""
        return None if self.control is None else self.control.state

    @property
    def next_edge_ns(self) -> int | None:
        """When a window opens or closes next; None where none does.

        Without a library `step` does nothing, and what was planned is not due: nobody would wait any more.
        """
        if self.control is None or not self._attachments.libraries:
            return None
        return self.control.next_edge_ns

    def step(self) -> list[SamplingWindow]:
        """Open and close what is due; returns the window that opened, if one did."""
        if self.control is None or not self._attachments.libraries:
            return []
        return self.control.step(time.monotonic_ns(), time.monotonic_ns)

    def stop(self) -> None:
        """End the window that is open."""
        if self.control is not None:
            self.control.stop(time.monotonic_ns)

    def count_calls(self, rows: CallArray) -> None:
        """Calls as they come, of all kinds."""
        for calls in self._calls.values():
            calls.count(rows)

    def count_names(self, repeated: Mapping[tuple[ProcessKey, ProbeGroup], int]) -> None:
        """So often did processes ask for names that are known, or cannot be."""
        if self._names is not None:
            self._names.count(repeated)

    def choose_names(self, now_ns: int) -> None:
        """Decide anew how names are probed; nothing changes while a window is open."""
        if self._names is None or self._attachments.window_is_open:
            return
        self._attachments.attach_missing()
        if self._names.has_new(self._targets.gpu_pids()):
            self._attachments.probe_always((ProbeGroup.NAME, ProbeGroup.ALIAS))
        self._attachments.probe_in_windows(self._names.too_dear(now_ns))

    @property
    def waits_are_windowed(self) -> bool:
        """Whether calls that may wait are probed in windows only."""
        return self._are_windowed(ProbeGroup.WAIT)

    @property
    def graph_launches_are_windowed(self) -> bool:
        """Whether launches of graphs are."""
        return self._are_windowed(ProbeGroup.GRAPH)

    @property
    def passes_are_windowed(self) -> bool:
        """Whether backward passes are."""
        return self._passes is not None and self._passes.are_windowed

    @property
    def need_windows(self) -> bool:
        """Whether one of these is, and so known from windows alone."""
        return self.passes_are_windowed or any(map(self._are_windowed, self._calls))

    @property
    def lead_ns(self) -> int:
        """How much longer it takes to open a window than to attach its probes."""
        return PASSES_LEAD_NS if self.passes_are_windowed else 0

    def choose_always_on(self, now_ns: int) -> bool:
        """Decide anew about waits, launches of graphs and backward passes; whether something has changed."""
        changed = {
            group: calls.are_windowed
            for group, calls in self._calls.items()
            if calls.decide(now_ns)
        }
        if self._passes is not None and self._passes.decide(now_ns, self._pass_totals()):
            changed[ProbeGroup.BACKWARD] = self._passes.are_windowed
        self._attachments.probe_in_windows(
            [group for group, windowed in changed.items() if windowed]
        )
        self._attachments.probe_always(
            [group for group, windowed in changed.items() if not windowed]
        )
        return bool(changed)

    def open_window(self) -> None:
        """Attach windowed probes to every library."""
        self._attachments.open_window()
        now_ns = time.monotonic_ns()
        for calls in self._windowed_calls():
            calls.begin(now_ns)
        if self._passes is not None and self._passes.are_windowed:
            self._passes.begin(now_ns, self._pass_totals())

    def record(self, close_ns: int | None) -> None:
        """Have executions recorded until `close_ns` (None: until the window is closed), once probes are attached."""
        self._devices.record(close_ns)

    def close_window(self) -> None:
        """End both."""
        self._devices.stop_recording()
        now_ns = time.monotonic_ns()
        for calls in self._windowed_calls():
            calls.end(now_ns)
        if self._passes is not None and self._passes.are_windowed:
            self._passes.end(now_ns, self._pass_totals())
        self._attachments.close_window()

    def costs(self) -> dict[int, tuple[int, int]]:
        """(hits, nanoseconds in programs) of each living target by pid, running totals."""
        found = ((pid, self._kernel.cost_of(pid)) for pid in self._targets.pids())
        return {pid: cost for pid, cost in found if cost is not None}

    def record_costs(self) -> dict[int, int]:
        """Nanoseconds that records of executions have cost each target by pid, running totals."""
        return self._devices.record_costs()

    def record_switch_ns(self) -> int:
        """What it stalls a target to begin and to end recording, besides what probes take."""
        return self._devices.record_switch_ns()

    def _are_windowed(self, group: ProbeGroup) -> bool:
        return group in self._calls and self._calls[group].are_windowed

    def _windowed_calls(self) -> list[FrequentCalls]:
        return [calls for calls in self._calls.values() if calls.are_windowed]

    def _pass_totals(self) -> dict[int, int]:
        return {pid: self._kernel.passes_of(pid) for pid in self._targets.pids()}
