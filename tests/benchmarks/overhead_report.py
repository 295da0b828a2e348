"""The report of one program: what each part costs, their sum, and whether it is within the budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from otel_gpuflame.capture.budget import stall_ns, stratum_length_ns
from otel_gpuflame.capture.cupti.cost import SWITCH_NS
from otel_gpuflame.capture.windows import length_with_window_ns
from tests.benchmarks.overhead_edges import (
    Choice,
    Edge,
    PartSamples,
    agent_cpu_cores,
    choice_of,
    direct_losses,
    hits_of,
    joined,
    parts_apart,
    samples_of,
    system_calls_of,
    unit_seconds,
)
from tests.benchmarks.paired import (
    MIN_UNITS,
    Decomposition,
    Interval,
    MiddleTerm,
    Samples,
    Term,
    TypicalTerm,
    adjusted,
    interval_of,
    interval_of_sum,
)
from tests.benchmarks.step_log import Steps

BUDGET: Final = 0.01
PASSES_AT: Final = 1 - BUDGET
_TYPICAL_DRAWS: Final = 1_000
_PARTS: Final = ("rare", "window", "record", "executions", "profiler")
_BESIDE: Final = {
    "null": "off beside off",
    "yardstick": "yardstick",
    "adjusted": "adjusted by it",
    "middle": "its middle units",
    "typical": "typical steps",
}
_WITHOUT_UNITS: Final = {
    "switching_ms": ("switching", 2, " ms a window"),
    "system_calls": ("slower system calls", 5, ""),
}
_VERDICTS: Final = {
    "rate": "rate, adjusted",
    "middle": "the same of the middle units",
    "typical": "typical steps",
}
_DIRECT: Final = {"direct_settled": True, "direct_whole": False}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program: what the host told, and when steps were done."""

    edges: list[Edge]
    steps: Steps

    @property
    def has_executions(self) -> bool:
        """Whether windows recorded executions."""
        return any(edge["kind"] == "options" and edge.get("gpu", False) for edge in self.edges)


def evaluate(workload: str, runs: Sequence[Run], duty: float | None = None) -> dict[str, Any]:
    """Everything that can be said of what was measured. Ratios are throughput with ÷ without.

    `duty`: for the sum, in place of the one that the agent chose.

    What is always on is the same with executions and without. Where some runs have them, nothing else is taken of the
    others.
    """
    edges = [edge for run in runs for edge in run.edges]
    if not edges:
        return {"workload": workload, "error": "the host has measured nothing"}
    chosen = [run for run in runs if run.has_executions] or runs
    samples = {
        part: joined(
            samples_of(part, run.edges, run.steps) for run in (runs if part == "rare" else chosen)
        )
        for part in (*_PARTS, *parts_apart(edges))
    }
    edges_of_chosen = [edge for run in chosen for edge in run.edges]
    choice = choice_of(edges_of_chosen)
    if choice is not None and duty is not None:
        choice = replace(choice, duty=duty)
    parts: dict[str, Any] = {}
    for part, found in samples.items():
        if found.losses:
            parts[part] = _described(found.array("losses"))
            parts[part]["null"] = _described(found.array("null"))
            if len(found.yardstick) == len(found.losses):
                parts[part]["yardstick"] = _described(found.array("yardstick"))
                parts[part]["adjusted"] = _described(_adjusted(found))
            if len(found.losses) >= MIN_UNITS:
                middle = MiddleTerm(_adjusted(found))
                parts[part]["middle"] = asdict(
                    interval_of_sum([middle], draws=_TYPICAL_DRAWS).as_ratio()
                )
                typical = TypicalTerm(found.on_steps, found.off_steps)
                parts[part]["typical"] = asdict(
                    interval_of_sum([typical], draws=_TYPICAL_DRAWS).as_ratio()
                )
            parts[part]["hits"] = {
                name: asdict(hits)
                for name, is_on in (("on", True), ("off", False))
                if (hits := hits_of(edges, part, on=is_on)) is not None
            }
    for part, described in parts.items():
        described["unit_s"] = unit_seconds(part, edges)
    parts |= {
        name: _described(
            np.concatenate([direct_losses(run.edges, run.steps, settled=settled) for run in chosen])
        )
        for name, settled in _DIRECT.items()
    }
    switching_ns = samples["window"].array("switching_ns")
    if len(switching_ns) >= MIN_UNITS:
        parts["switching_ms"] = asdict(interval_of(switching_ns / 1e6, is_logarithm=False))
    system_calls = system_calls_of(edges)
    if len(system_calls) >= MIN_UNITS:
        parts["system_calls"] = asdict(interval_of(system_calls, is_logarithm=False).as_ratio())
    return {
        "workload": workload,
        "steps_per_s": _median_rate(runs),
        "parts": parts,
        "choice": None if choice is None else asdict(choice),
        "agent_cpu_cores": agent_cpu_cores(edges_of_chosen),
        "killed": any(edge["kind"] == "killed" for edge in edges),
        "load": [edge for edge in edges if edge["kind"] == "load"],
        "programs": [edge for edge in edges if edge["kind"] == "programs"],
        "arranged": [edge for edge in edges if edge["kind"] == "arranged"],
        "executions": chosen[0].has_executions,
        "steady": _steady(
            samples, system_calls, choice, SWITCH_NS if chosen[0].has_executions else 0.0
        ),
    }


def _steady(
    samples: Mapping[str, PartSamples],
    system_calls: Samples,
    choice: Choice | None,
    record_stall_ns: float,
) -> dict[str, Any] | None:
    """By the mean rate, and by typical steps. None where a part is missing."""
    rare, window = samples["rare"], samples["window"]
    switching_ns = window.array("switching_ns")
    units = (len(rare.losses), len(window.losses), len(switching_ns), len(system_calls))
    if choice is None or min(units) < MIN_UNITS:
        return None
    stratum_ns = _stratum_ns(choice, record_stall_ns)
    by_rate = Decomposition(
        rare=Term(_adjusted(rare)),
        window=partial(Term, _adjusted(window)),
        system_calls=system_calls,
        switching_ns=switching_ns,
        duty=choice.duty,
        stratum_ns=stratum_ns,
    )
    by_middle = replace(
        by_rate,
        rare=MiddleTerm(_adjusted(rare)),
        window=partial(MiddleTerm, _adjusted(window)),
    )
    by_step = replace(
        by_rate,
        rare=TypicalTerm(rare.on_steps, rare.off_steps),
        window=partial(TypicalTerm, window.on_steps, window.off_steps),
    )
    return {
        "duty": choice.duty,
        "stratum_s": stratum_ns / 1e9,
        "rate": _verdict(by_rate.loss().as_ratio()),
        "middle": _verdict(by_middle.loss(draws=_TYPICAL_DRAWS).as_ratio()),
        "typical": _verdict(by_step.loss(draws=_TYPICAL_DRAWS).as_ratio()),
    }


def _stratum_ns(choice: Choice, record_stall_ns: float) -> int:
    least_ns = stratum_length_ns(stall_ns(choice.switch_ns, record_stall_ns), BUDGET)
    if choice.duty <= 0:
        return least_ns
    return length_with_window_ns(least_ns, choice.switch_ns, choice.duty)


def _verdict(ratio: Interval) -> dict[str, Any]:
    return {**asdict(ratio), "passes": ratio.low >= PASSES_AT}


def _adjusted(part: PartSamples) -> Samples:
    return adjusted(part.array("losses"), part.array("yardstick"))


def _described(losses: Samples) -> dict[str, Any]:
    """Ratio of throughput with its interval, as far as there are units for one."""
    ratios = np.exp(-losses)
    described: dict[str, Any] = {
        "units": len(losses),
        "ratios": [round(float(r), 5) for r in ratios],
    }
    if len(losses) >= MIN_UNITS:
        described |= asdict(interval_of(losses).as_ratio())
    if len(losses):
        described["median"] = float(np.median(ratios))
    return described


def _median_rate(runs: Sequence[Run]) -> float:
    gaps = np.concatenate([np.diff(run.steps.times_ns) for run in runs])
    return 1e9 / float(np.median(gaps)) if len(gaps) else 0.0


def in_words(report: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    if "parts" not in report:
        return f"{report['workload']}: {report['error']}"
    lines = [f"{report['workload']}: {report['steps_per_s']:,.0f} steps/s"]
    for name, part in report["parts"].items():
        if "units" not in part:
            words, digits, unit = _WITHOUT_UNITS[name]
            lines.append(f"  {words}: {_interval(part, digits)}{unit}")
            continue
        text = f"  {name}: {part['units']} units"
        if "value" in part:
            text += f", throughput {_interval(part, 4)}"
        if "median" in part:
            text += f", median {part['median']:.4f}"
        for key, words in _BESIDE.items():
            if "value" in part.get(key, {}):
                text += f"; {words} {_interval(part[key], 4)}"
        for state, hits in part.get("hits", {}).items():
            text += f"; {state}: {hits['per_s']:,.0f} hits/s of {hits['program_ns']:,.0f} ns"
        lines.append(text)
    return "\n".join([*lines, *_ending(report)])


def _ending(report: dict[str, Any]) -> list[str]:
    lines = [_programs(told) for told in report["programs"]]
    lines += [
        f"  {what} are captured in windows"
        for told in report["arranged"]
        for what in ("waits", "graph launches")
        if told[f"{what.replace(' ', '_')}_are_windowed"]
    ]
    choice = report["choice"]
    if choice is not None:
        lines.append(
            f"  the agent chose duty {choice['duty']:.4f}, says a switch takes {choice['switch_ns'] / 1e6:.1f} ms, "
            f"and estimates that it costs {choice['estimate']:.4f}; it takes {report['agent_cpu_cores']:.3f} cores"
        )
    if report["killed"]:
        lines.append("  the kill switch ended capture")
    steady = report["steady"]
    if steady is None:
        lines.append("  steady state: too little was measured")
    else:
        lines.append(
            f"  steady state{' with executions' if report['executions'] else ''} at duty "
            f"{steady['duty']:.4f}, one window in {steady['stratum_s']:.1f} s"
        )
        for name, words in _VERDICTS.items():
            verdict = "passes" if steady[name]["passes"] else "does not pass"
            lines.append(f"    {words}: {_interval(steady[name], 4)}: {verdict} at {PASSES_AT}")
    return lines


def _programs(told: Edge) -> str:
    """Each program's runs a second and nanoseconds a run, of all processes."""
    seconds = told["seconds"]
    runs = {name: value for name, value in told.items() if isinstance(value, list) and value[0]}
    each = (
        f"{name} {count / seconds:,.0f}/s of {time_ns / count:,.0f} ns"
        for name, (count, time_ns) in runs.items()
    )
    return "  programs: " + ", ".join(each)


def _interval(found: dict[str, Any] | Interval, digits: int) -> str:
    facts = found if isinstance(found, dict) else asdict(found)
    value, low, high = (f"{facts[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
