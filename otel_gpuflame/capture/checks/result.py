"""What a check answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    """Capture works, with a reduction."""
    FAIL = "fail"
    """Capture does not work."""
    SKIP = "skip"
    """Does not apply here, or was not asked for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. `remedy` is empty when there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def ok(name: str, detail: str) -> Check:
    """All is well."""
    return Check(name, Status.OK, detail)


def warn(name: str, detail: str, remedy: str) -> Check:
    """Something is reduced; `detail` says what."""
    return Check(name, Status.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str) -> Check:
    """Capture does not work without it."""
    return Check(name, Status.FAIL, detail, remedy)


def skip(name: str, detail: str) -> Check:
    """Not checked; `detail` says why."""
    return Check(name, Status.SKIP, detail)
