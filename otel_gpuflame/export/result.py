"""What became of an export."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How far a request got."""

    ACCEPTED = "accepted"
    PARTIAL = "partial"
    """Accepted, but the receiver threw some profiles away; sending again would not help."""
    REJECTED = "rejected"
    """Refused for good: by the receiver, or because it cannot be reached as configured."""
    RETRYABLE = "retryable"
    """Not accepted in time; the same request may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Outcome of one export.

    `message` is for people and names the remedy where one is known; it may be set on success, where
    it is a warning of the receiver. `size_bytes` is the request before compression.
    `retry_after_s` is how long the receiver asked to be left alone, None where it did not.
    """

    outcome: Outcome
    message: str = ""
    rejected_profiles: int = 0
    size_bytes: int = 0
    attempts: int = 1
    retry_after_s: float | None = None
