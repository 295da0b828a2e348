"""The report of one program: what each part costs, their sum, and whether it is within the budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from otel_gpuflame.capture.budget import stratum_length_ns
from tests.benchmarks.overhead_edges import (
    Choice,
    Edge,
    PartSamples,
    agent_cpu_cores,
    choice_of,
    direct_losses,
    hits_of,
    joined,
    samples_of,
    unit_seconds,
)
from tests.benchmarks.paired import (
    MIN_UNITS,
    Decomposition,
    Interval,
    Samples,
    adjusted,
    interval_of,
)
from tests.benchmarks.step_log import Steps

BUDGET: Final = 0.01
PASSES_AT: Final = 1 - BUDGET
_PARTS: Final = ("rare", "window", "record")
_BESIDE: Final = {
    "null": "off beside off",
    "yardstick": "yardstick",
    "adjusted": "adjusted by it",
}
_DIRECT: Final = {"direct_settled": True, "direct_whole": False}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program: what the host told, and when steps were done."""

    edges: list[Edge]
    steps: Steps


def evaluate(workload: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that can be said of what was measured. Ratios are throughput with ÷ without."""
    edges = [edge for run in runs for edge in run.edges]
    if not edges:
        return {"workload": workload, "error": "the host has measured nothing"}
    samples = {
        part: joined(samples_of(part, run.edges, run.steps) for run in runs) for part in _PARTS
    }
    choice = choice_of(edges)
    parts: dict[str, Any] = {}
    for part, found in samples.items():
        if found.losses:
            parts[part] = _described(found.array("losses"))
            parts[part]["null"] = _described(found.array("null"))
            if len(found.yardstick) == len(found.losses):
                parts[part]["yardstick"] = _described(found.array("yardstick"))
                parts[part]["adjusted"] = _described(_adjusted(found))
            parts[part]["hits"] = {
                name: asdict(hits)
                for name, is_on in (("on", True), ("off", False))
                if (hits := hits_of(edges, part, on=is_on)) is not None
            }
    for part, described in parts.items():
        described["unit_s"] = unit_seconds(part, edges)
    parts |= {
        name: _described(
            np.concatenate([direct_losses(run.edges, run.steps, settled=settled) for run in runs])
        )
        for name, settled in _DIRECT.items()
    }
    switching_ns = samples["window"].array("switching_ns")
    if len(switching_ns) >= MIN_UNITS:
        parts["switching_ms"] = asdict(interval_of(switching_ns / 1e6, is_logarithm=False))
    return {
        "workload": workload,
        "steps_per_s": _median_rate(runs),
        "parts": parts,
        "choice": None if choice is None else asdict(choice),
        "agent_cpu_cores": agent_cpu_cores(edges),
        "killed": any(edge["kind"] == "killed" for edge in edges),
        "load": [edge for edge in edges if edge["kind"] == "load"],
        "steady": _steady(
            _adjusted(samples["rare"]), _adjusted(samples["window"]), switching_ns, choice
        ),
    }


def _steady(
    rare: Samples, window: Samples, switching_ns: Samples, choice: Choice | None
) -> dict[str, Any] | None:
    """None where a part is missing."""
    if choice is None or min(len(rare), len(window), len(switching_ns)) < MIN_UNITS:
        return None
    found = Decomposition(
        rare=rare,
        window=window,
        switching_ns=switching_ns,
        duty=choice.duty,
        stratum_ns=stratum_length_ns(choice.switch_ns, BUDGET),
    )
    ratio = found.loss().as_ratio()
    return {
        **asdict(ratio),
        "duty": found.duty,
        "stratum_s": found.stratum_ns / 1e9,
        "passes": ratio.low >= PASSES_AT,
    }


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
        if name == "switching_ms":
            lines.append(f"  switching: {_interval(part, 2)} ms a window")
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
        verdict = "passes" if steady["passes"] else "does not pass"
        lines.append(
            f"  steady state: {_interval(steady, 4)} at duty {steady['duty']:.4f}, one window in "
            f"{steady['stratum_s']:.1f} s: {verdict} at {PASSES_AT}"
        )
    return "\n".join(lines)


def _interval(found: dict[str, Any] | Interval, digits: int) -> str:
    facts = found if isinstance(found, dict) else asdict(found)
    value, low, high = (f"{facts[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
