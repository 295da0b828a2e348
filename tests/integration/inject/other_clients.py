"""A program's own profiler: what it does, and what it must get."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

from tests.integration.inject.session import session

COUNT = 40
PROFILED = (1, 2, 10)
"""Kinds that the profiler asks for. What a window of ours has left on comes to it besides."""

Records = list[tuple[int, ...]]


class Program(Protocol):
    """A target program that runs."""

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; its answer."""


def work(target: Program) -> None:
    """Kernels that can be told apart, copies and a set."""
    target.do("launch", count=COUNT)
    target.do("copies", size_bytes=4096)
    target.do("launch", count=COUNT)
    target.do("synchronize")


def end_of(target: Program, **how: Any) -> Records:
    """Have the profiler end; what it got of the kinds that it asked for."""
    answer = target.do("profile_end", **how)
    return [tuple(record) for record in answer["records"] if record[0] in PROFILED]


@cache
def without_us() -> Records:
    """What the profiler gets in a program that has nothing of ours in it."""
    with session(None) as target:
        target.do("profile_begin")
        work(target)
        found = end_of(target)
    assert [grid for _, grid, _ in found if grid] == [*range(1, COUNT + 1)] * 2
    return found
