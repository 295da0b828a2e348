"""Running totals of what was lost, as events: once a second, if something was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from otel_gpuflame.events.records import LossCount, SourceCounters

_EVERY_NS: Final = 1_000_000_000


class Accounting:
    """Asks `read`, which knows everybody who counts."""

    def __init__(self, read: Callable[[], list[LossCount]]) -> None:
        self._read = read
        self._last: tuple[LossCount, ...] = ()
        self._due_ns = 0

    def events(self, *, force: bool) -> Iterator[SourceCounters]:
        """The totals, where they are due and have changed; with `force` in any case."""
        now_ns = time.monotonic_ns()
        if not force and now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        counts = tuple(each for each in self._read() if each.count)
        if counts != self._last or force:
            self._last = counts
            yield SourceCounters(now_ns, counts)
