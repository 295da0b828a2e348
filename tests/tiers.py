# SPDX-License-Identifier: Apache-2.0
"""Tiers of tests that need more than Python: a forced tier must run, so it fails, not skips."""

from __future__ import annotations

import os

import pytest

FORCE_VARIABLE = "OGF_FORCE_TIERS"


def forced_tiers() -> frozenset[str]:
    """The tiers named in `OGF_FORCE_TIERS`, a comma-separated list."""
    names = os.environ.get(FORCE_VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def require(tier: str, available: bool, reason: str) -> None:
    """Go on if `available`; otherwise skip the test, or fail it when its tier is forced."""
    if available:
        return
    if tier in forced_tiers():
        pytest.fail(f"{FORCE_VARIABLE} forces the tier {tier!r}, but it cannot run: {reason}")
    pytest.skip(f"{tier}: {reason}")
