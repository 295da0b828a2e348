"""Findings for the terminal, and for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from otel_gpuflame.cli.tables import human, say
from otel_gpuflame.findings.as_json import document
from otel_gpuflame.findings.model import Evidence, Finding

_UNITS = {"_ns": "nanoseconds", "_bytes": "bytes"}
_INDENT = (0, 0, 0, 2)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A paragraph for each: where, how much, why, what helps."""
    if not findings:
        say(console, "Findings: none", "bold")
        return
    say(console, "Findings", "bold")
    for finding in findings:
        lost = f"{human(finding.lost_ns, 'nanoseconds')}, {finding.share:.1%} of the window"
        say(console, "")
        say(console, f"{finding.title}: {lost}, confidence {finding.confidence.value}", "yellow")
        say(console, f"  {finding.place.name}  {finding.where}")
        _print_text(console, _numbers(finding.evidence), "dim")
        _print_text(console, finding.remedy)


def print_findings_json(findings: Sequence[Finding]) -> None:
    """One JSON document to standard output."""
    click.echo(json.dumps(document(findings), indent=2))


def _print_text(console: Console, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style), _INDENT))


def _numbers(evidence: Evidence) -> str:
    """`28 waits, mean wait 53.3 ms …`, as they come."""
    return ", ".join(_number(name, value) for name, value in evidence)


def _number(name: str, value: float | str) -> str:
    # `mean_idle_ns_per_launch`: the unit stands before what it is counted by.
    measure, per, what = name.partition("_per_")
    suffix = next((end for end in _UNITS if measure.endswith(end)), "")
    readable = (measure.removesuffix(suffix) + per + what).replace("_", " ")
    if isinstance(value, str):
        return f"{readable} {value}"
    if suffix:
        return f"{readable} {human(value, _UNITS[suffix])}"
    return f"{readable} {value:,}"
