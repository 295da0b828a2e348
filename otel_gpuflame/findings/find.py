"""All rules over closed windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from otel_gpuflame.findings.back_pressure import BACK_PRESSURE_BOUND
from otel_gpuflame.findings.copies import UNPINNED_COPY
from otel_gpuflame.findings.facts import Facts, facts_of, used_window
from otel_gpuflame.findings.idle import INPUT_BOUND, LAUNCH_BOUND
from otel_gpuflame.findings.low_occupancy import LOW_OCCUPANCY
from otel_gpuflame.findings.model import Confidence, Finding, Rule
from otel_gpuflame.findings.synchronise import SYNCHRONISE_IN_LOOP
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE, PROBABILITY_ATTRIBUTE

RULES: Final[tuple[Rule, ...]] = (
    SYNCHRONISE_IN_LOOP,
    UNPINNED_COPY,
    LAUNCH_BOUND,
    INPUT_BOUND,
    BACK_PRESSURE_BOUND,
    LOW_OCCUPANCY,
)


_MIN_KERNELS_SEEN: Final = 100
"""Kernels that a sampling window must have seen: fewer are no evidence of what they were scaled to."""


def find(bundles: Iterable[Bundle]) -> list[Finding]:
    """What rules say about each bundle, the most time lost first.

    What is lost is scaled as estimates are, and then no finding is more than likely.
    """
    found = []
    for bundle in bundles:
        facts = facts_of(bundle)
        if bundle.scope != ESTIMATED_SCOPE:
            found += list(_find(bundle, facts))
            continue
        probability = float(dict(bundle.profile_attributes).get(PROBABILITY_ATTRIBUTE, 0))
        facts = replace(facts, probability=probability)
        # Waits are in the estimates of calls, which have no executions; rules count how many were seen.
        if facts.waits or facts.kernel_executions * probability >= _MIN_KERNELS_SEEN:
            found += [_as_estimate(each, probability) for each in _find(bundle, facts)]
    return sorted(found, key=lambda f: (-f.lost_ns, f.rule, f.where))


def _as_estimate(finding: Finding, probability: float) -> Finding:
    is_sure = finding.confidence is Confidence.HIGH
    return replace(
        finding,
        confidence=Confidence.MEDIUM if is_sure else finding.confidence,
        evidence=(*finding.evidence, ("sampling_probability", probability)),
    )


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
