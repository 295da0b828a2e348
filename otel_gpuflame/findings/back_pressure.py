"""Launches that are held back because the device's queue is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.findings.facts import LAUNCHES, Facts
from otel_gpuflame.findings.model import Confidence, Loss, Rule

_MIN_SHARE: Final = 0.10


def is_device_behind(facts: Facts) -> bool:
    """Whether launches are held back for so long that it is the device that limits."""
    held_back_ns = _held_back(facts).total()
    return held_back_ns > 0 and held_back_ns >= _MIN_SHARE * facts.window_ns


def _held_back(facts: Facts) -> Counter[Frame]:
    by_place: Counter[Frame] = Counter()
    for at, ns in facts.wait_ns.items():
        if at.is_of(*LAUNCHES):
            by_place[at.place] += ns
    return by_place


def _find(facts: Facts) -> Iterator[Loss]:
    if not is_device_behind(facts):
        return
    by_place = _held_back(facts)
    lost_ns = by_place.total()
    place, most_ns = by_place.most_common(1)[0]
    yield Loss(
        place=place,
        lost_ns=lost_ns,
        evidence=(
            ("launches", facts.launches()),
            ("held_back_ns_per_launch", round(lost_ns / max(facts.launches(), 1))),
            ("at_this_line_ns", most_ns),
        ),
        confidence=Confidence.HIGH,
    )


BACK_PRESSURE_BOUND: Final = Rule(
    id="back-pressure-bound",
    title="Back-pressure-bound",
    remedy="The device is what limits: make its kernels cheaper. Until then the thread could do other work, which now "
    "waits behind launches that the driver does not take.",
    find=_find,
)
