"""Whether the code under test has let go of what it was given."""

from __future__ import annotations

import sys


def held(texts: list[str]) -> int:
    """How many of these texts, made for the test and referred to by its list alone, somebody else still refers to."""
    alone = ["".join(("no", "body"))]
    unreferred = sys.getrefcount(alone[0])
    return sum(sys.getrefcount(texts[index]) > unreferred for index in range(len(texts)))
