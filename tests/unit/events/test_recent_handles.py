"""What handles mean, of a program that loads modules for days."""

from __future__ import annotations

import pytest

from otel_gpuflame.events import recent_handles
from otel_gpuflame.events.recent_handles import RecentHandles


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> RecentHandles[str]:
    """With room for three handles, or 100 characters."""
    monkeypatch.setattr(recent_handles, "MAX_HANDLES", 3)
    monkeypatch.setattr(recent_handles, "MAX_CHARACTERS", 100)
    return RecentHandles()


def test_what_was_not_used_for_longest_goes(small: RecentHandles[str]) -> None:
    """Using is enough to stay: kernels of the start of a program run as long as it does."""
    for handle in (1, 2, 3):
        assert small.put(handle, f"kernel {handle}", 10) == []
    assert small.get(1) == "kernel 1"
    assert small.put(4, "kernel 4", 10) == ["kernel 2"]
    assert small.put(3, "another", 10) == []
    assert small.put(5, "kernel 5", 10) == ["kernel 1"]
    assert [small.get(handle) for handle in range(1, 6)] == [
        None,
        None,
        "another",
        "kernel 4",
        "kernel 5",
    ]
    assert sorted(small.values()) == ["another", "kernel 4", "kernel 5"]


def test_long_names_go_before_there_are_many(small: RecentHandles[str]) -> None:
    """Characters are counted as names come, change and go; the last one stays, however long."""
    small.put(1, "a", 60)
    assert small.put(2, "b", 60) == ["a"]
    assert small.put(2, "c", 30) == []
    assert small.put(3, "d", 70) == []
    assert small.put(4, "e", 500) == ["c", "d"]
    assert small.put(5, "f", 100) == ["e"]
    assert len(small) == 1
