"""Findings as JSON. `docs/findings.md` has the schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from otel_gpuflame.findings.model import Finding

SCHEMA_VERSION: Final = 1
"""Changes when something is taken away or means something else; what is added does not change it."""
_OF_TARGET: Final = ("service.name", "service.namespace", "service.instance.id", "process.pid")


def document(findings: Iterable[Finding]) -> dict[str, Any]:
    """What `replay --findings --json` prints."""
    return {"version": SCHEMA_VERSION, "findings": [finding_json(each) for each in findings]}


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding."""
    resource = dict(finding.resource)
    return {
        "rule": finding.rule,
        "title": finding.title,
        "function": finding.place.name,
        "file": finding.place.file,
        "line": finding.place.line,
        "lost_ns": finding.lost_ns,
        "share_of_window": round(finding.share, 6),
        "confidence": finding.confidence.value,
        "evidence": dict(finding.evidence),
        "remedy": finding.remedy,
        "target": {key: resource[key] for key in _OF_TARGET if key in resource},
        "window": {
            "start_unix_ns": finding.window.start_unix_ns,
            "end_unix_ns": finding.window.end_unix_ns,
        },
    }
