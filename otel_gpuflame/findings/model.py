"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.findings.facts import Facts
from otel_gpuflame.profile.model import AttributeSet, Window

Evidence: TypeAlias = tuple[tuple[str, int | float | str], ...]
"""Numbers by names with their unit."""


class Confidence(Enum):
    """How sure it is that time is lost, and for this reason."""

    LOW = "low"
    """A bound, or a sign: worth a measurement."""
    MEDIUM = "medium"
    HIGH = "high"
    """Measured, and it can hardly be anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a rule says about one line."""

    place: Frame
    """The innermost line of the program's own Python code that it is about."""
    lost_ns: int
    evidence: Evidence
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One section of docs/findings.md."""

    id: str
    title: str
    remedy: str
    find: Callable[[Facts], Iterable[Loss]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A reason for which time is lost, where, and what helps."""

    rule: str
    title: str
    place: Frame
    lost_ns: int
    """Of threads or of devices, as the rule says; times at the same time add up."""
    share: float
    """`lost_ns` of the length of the window: above 1 where several threads or devices lose."""
    evidence: Evidence
    confidence: Confidence
    remedy: str
    resource: AttributeSet
    """Of the target."""
    window: Window

    @property
    def where(self) -> str:
        """`file:line`, the file alone, or the function, as far as known."""
        if not self.place.file:
            return self.place.name
        return f"{self.place.file}:{self.place.line}" if self.place.line else self.place.file
