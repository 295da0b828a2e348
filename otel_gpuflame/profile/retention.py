"""What is known of ended processes, until no open window can refer to it any more."""

from __future__ import annotations

from collections.abc import Iterable

from otel_gpuflame.events.frames import ProcessKey


class Retention:
    """Two generations: a process goes when two closings have passed since its end was known.

    One is not enough: the first may close a window that had ended before the process did.
    """

    def __init__(self) -> None:
        self._new: list[ProcessKey] = []
        self._old: list[ProcessKey] = []

    def ended(self, processes: Iterable[ProcessKey]) -> None:
        """No further call of these will come."""
        self._new += processes

    def closed(self) -> list[ProcessKey]:
        """A window was closed; the processes that can be forgotten now."""
        forgotten, self._old, self._new = self._old, self._new, []
        return forgotten
