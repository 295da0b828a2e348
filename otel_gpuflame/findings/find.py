"""All rules over closed windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from otel_gpuflame.findings.back_pressure import BACK_PRESSURE_BOUND
from otel_gpuflame.findings.copies import UNPINNED_COPY
from otel_gpuflame.findings.facts import Facts, facts_of, used_window
from otel_gpuflame.findings.idle import INPUT_BOUND, LAUNCH_BOUND
from otel_gpuflame.findings.low_occupancy import LOW_OCCUPANCY
from otel_gpuflame.findings.model import Finding, Rule
from otel_gpuflame.findings.synchronise import SYNCHRONISE_IN_LOOP
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE

RULES: Final[tuple[Rule, ...]] = (
    SYNCHRONISE_IN_LOOP,
    UNPINNED_COPY,
    LAUNCH_BOUND,
    INPUT_BOUND,
    BACK_PRESSURE_BOUND,
    LOW_OCCUPANCY,
)


def find(bundles: Iterable[Bundle]) -> list[Finding]:
    """What rules say about each bundle of exact values, the most time lost first; estimates are left out."""
    found = [
        finding
        for bundle in bundles
        if bundle.scope != ESTIMATED_SCOPE
        for finding in _find(bundle, facts_of(bundle))
    ]
    return sorted(found, key=lambda f: (-f.lost_ns, f.rule, f.where))


def _find(bundle: Bundle, facts: Facts) -> Iterator[Finding]:
    for rule in RULES:
        for loss in rule.find(facts):
            yield Finding(
                rule=rule.id,
                title=rule.title,
                place=loss.place,
                lost_ns=loss.lost_ns,
                share=loss.lost_ns / facts.window_ns,
                evidence=loss.evidence,
                confidence=loss.confidence,
                remedy=rule.remedy,
                resource=bundle.resource,
                window=used_window(bundle),
            )
