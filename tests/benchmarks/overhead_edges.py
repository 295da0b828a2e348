"""From the edges of blocks and the times of steps to losses, one a unit. Pure."""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from tests.benchmarks.paired import Samples, loss_of_unit
from tests.benchmarks.step_log import Steps

Edge = Mapping[str, Any]
_ROLES: Final = ("off_before", "on", "off_after")
_DIRECT_SETTLE_NS = 4_000_000_000
"""Of an on block: loading, and the first stratum, which only measures."""
_DIRECT_FLUSH_NS = 1_500_000_000
"""Of an off block: the agent still sends."""


@dataclass(slots=True)
class PartSamples:
    """One entry a unit."""

    losses: list[float] = field(default_factory=list)
    switching_ns: list[float] = field(default_factory=list)
    null: list[float] = field(default_factory=list)
    """The same figure between two states that are equal: the off blocks of neighbouring units, halved."""
    on_steps: list[Samples] = field(default_factory=list)
    """How long steps took in on blocks, an array for each of `losses`."""
    off_steps: list[Samples] = field(default_factory=list)
    """The same of both off blocks."""
    yardstick: list[float] = field(default_factory=list)
    """By how much longer yardsticks took in the on block, as a logarithm, for each of `losses`; empty where the program
    measured none."""

    def array(self, name: str) -> Samples:
        """By name of the field."""
        return np.array(getattr(self, name), float)


def parse(lines: Iterable[str]) -> list[Edge]:
    """Edges of the host's output; a last line that was cut short is left out."""
    edges: list[Edge] = []
    with contextlib.suppress(json.JSONDecodeError):
        edges += (json.loads(line) for line in lines)
    return edges


def samples_of(part: str, edges: Iterable[Edge], steps: Steps) -> PartSamples:
    """Losses of a part's whole units; units in which the program logged too little are left out."""
    samples = PartSamples()
    earlier_off: tuple[float, float] | None = None
    for unit in _units(part, edges).values():
        if not set(_ROLES) <= unit.keys():
            continue
        try:
            before, on, after = (steps.rate(*_times_ns(unit[role])) for role in _ROLES)
            loss = loss_of_unit(*(steps.rate(*quarter) for quarter in _quarters(unit)))
            yardstick = _yardstick(unit, steps)
            if yardstick is not None:
                loss /= 1 - yardstick.share
                samples.yardstick.append(yardstick.longer)
            samples.losses.append(loss)
            durations = {role: steps.durations(*_times_ns(unit[role])) for role in _ROLES}
            samples.on_steps.append(durations["on"])
            samples.off_steps.append(
                np.concatenate([durations["off_before"], durations["off_after"]])
            )
            if {"to on", "to off"} <= unit.keys():
                samples.switching_ns.append(_switching_ns(unit, (before + after) / 2, on, steps))
        except (ValueError, ZeroDivisionError):
            earlier_off = None
            continue
        if earlier_off is not None:
            samples.null.append(loss_of_unit(earlier_off[0], earlier_off[1], before, after))
        earlier_off = (before, after)
    return samples


def parts_apart(edges: Iterable[Edge]) -> list[str]:
    """Names of the parts that are one of what is always on, by itself."""
    names = {str(edge["part"]) for edge in edges if edge["kind"] == "block"}
    return sorted(name for name in names if name.startswith("apart "))


class _Yardstick(NamedTuple):
    longer: float
    """In the on block, as a logarithm."""
    share: float
    """Of the program's time in off blocks: what no probe touches makes losses look smaller by that."""


def _yardstick(unit: Mapping[str, Edge], steps: Steps) -> _Yardstick | None:
    with contextlib.suppress(ValueError):
        quarters = _quarters(unit)
        found = [steps.yardsticks(*quarter) for quarter in quarters]
        speeds = (math.exp(-np.log(durations_ns).mean()) for durations_ns in found)
        off_ns = sum(end_ns - start_ns for start_ns, end_ns in (quarters[0], quarters[3]))
        share = float(found[0].sum() + found[3].sum()) / off_ns
        return _Yardstick(loss_of_unit(*speeds), share)
    return None


def _quarters(unit: Mapping[str, Edge]) -> list[tuple[int, int]]:
    """The four times of a unit: off, on, on, off."""
    before, (start_ns, end_ns), after = (_times_ns(unit[role]) for role in _ROLES)
    middle_ns = (start_ns + end_ns) // 2
    return [before, (start_ns, middle_ns), (middle_ns, end_ns), after]


def _times_ns(edge: Edge) -> tuple[int, int]:
    return edge["start_ns"], edge["end_ns"]


def joined(parts: Iterable[PartSamples]) -> PartSamples:
    """Those of several runs."""
    whole = PartSamples()
    for part in parts:
        whole.losses += part.losses
        whole.switching_ns += part.switching_ns
        whole.null += part.null
        whole.yardstick += part.yardstick
        whole.on_steps += part.on_steps
        whole.off_steps += part.off_steps
    return whole


def _units(part: str, edges: Iterable[Edge]) -> dict[int, dict[str, Edge]]:
    units: dict[int, dict[str, Edge]] = defaultdict(dict)
    for edge in edges:
        if edge.get("part") == part:
            role = f"to {edge['role']}" if edge["kind"] == "switch" else edge["role"]
            units[edge["unit"]][role] = edge
    return units


def _switching_ns(unit: Mapping[str, Edge], off: float, on: float, steps: Steps) -> float:
    """Time without progress that both switches cost: what was missing at the rate of the states beside them.

    While probes are being attached, nothing of the program is covered by the window: the off rate counts.
    """
    lost_ns = 0.0
    for name, rate_after in (("to on", on), ("to off", off)):
        switch = unit[name]
        start_ns, end_ns, guard_ns = switch["start_ns"], switch["end_ns"], switch["guard_end_ns"]
        lost_ns += (end_ns - start_ns) - steps.between(start_ns, end_ns) / off
        lost_ns += (guard_ns - end_ns) - steps.between(end_ns, guard_ns) / rate_after
    return lost_ns


def system_calls_of(edges: Iterable[Edge]) -> Samples:
    """Share of the program's time that tracepoints of system calls cost: its calls a second times ns a call."""
    return np.array(
        [
            told["per_s"] * added_ns / 1e9
            for told in edges
            if told["kind"] == "system_calls"
            for added_ns in told["added_ns"]
        ],
        float,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the agent has come to in the end, averaged over cycles. `estimate`: what it thinks it costs."""

    duty: float
    switch_ns: float
    estimate: float


def choice_of(edges: Iterable[Edge]) -> Choice | None:
    """None where the agent never came so far.

    Its first strata have a duty for measuring, and begin anew when it has learned which calls are frequent.
    """
    told = [edge for edge in edges if edge["kind"] == "choice"]
    last = {edge["cycle"]: edge for edge in told if edge["since_ns"] > _DIRECT_SETTLE_NS}
    # Nothing has been chosen yet where no window has been opened yet, which takes long on a busy machine.
    settled = [edge for edge in last.values() if edge["switch_ns"] > 0]
    if not settled:
        return None
    duty, switch_ns, estimate = (
        float(np.mean([edge[name] for edge in settled]))
        for name in ("duty", "switch_ns", "overhead")
    )
    return Choice(duty=duty, switch_ns=switch_ns, estimate=estimate)


def direct_losses(edges: list[Edge], steps: Steps, *, settled: bool) -> Samples:
    """One a cycle: whole on blocks, or what is left of them when the agent has `settled`."""
    blocks = [edge for edge in edges if edge.get("part") == "direct"]
    skip_ns = _DIRECT_SETTLE_NS if settled else 0
    losses = []
    for before, on, after in zip(blocks[::2], blocks[1::2], blocks[2::2], strict=False):
        off = [steps.rate(b["start_ns"] + _DIRECT_FLUSH_NS, b["end_ns"]) for b in (before, after)]
        on_rate = steps.rate(on["start_ns"] + skip_ns, on["end_ns"])
        losses.append(loss_of_unit(off[0], on_rate, on_rate, off[1]))
    return np.array(losses, float)


def agent_cpu_cores(edges: Iterable[Edge]) -> float:
    """CPU time of the agent and its encoding process in the on blocks of `direct`, by their length."""
    on = [edge for edge in edges if edge.get("part") == "direct" and edge["role"] == "on"]
    seconds = sum(edge["end_ns"] - edge["start_ns"] for edge in on) / 1e9
    return sum(edge["cpu_s"] for edge in on) / seconds if on else 0.0


def unit_seconds(part: str, edges: Iterable[Edge]) -> float:
    """What one unit took, switching included; for planning."""
    found = [edge for edge in edges if edge.get("part") == part]
    seconds: float = (found[-1]["end_ns"] - found[0]["start_ns"]) / 1e9
    return seconds / int(found[-1]["unit"] + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What BPF counted of the program while a part was on or off: how often probes were hit, and what programs took."""

    per_s: float
    program_ns: float
    """Of one hit, the trap not included."""


def hits_of(edges: Iterable[Edge], part: str, *, on: bool) -> Hits | None:
    """None where there were none. `edges` may be those of several runs, one after the other."""
    hits = program_ns = seconds = 0.0
    pid = 0
    for edge in edges:
        pid = edge["pid"] if edge["kind"] == "options" else pid
        if edge["kind"] != "block" or edge["part"] != part or (edge["role"] == "on") is not on:
            continue
        before, after = (edge.get(name, {}).get(str(pid)) for name in ("costs_before", "costs"))
        if before is not None and after is not None:
            hits += after[0] - before[0]
            program_ns += after[1] - before[1]
            seconds += (edge["end_ns"] - edge["start_ns"]) / 1e9
    return Hits(per_s=hits / seconds, program_ns=program_ns / hits) if hits else None
