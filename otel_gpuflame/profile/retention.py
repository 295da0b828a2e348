"""What is known of ended processes, until no open window or stratum can refer to it any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.frames import ProcessKey

_WINDOWS: Final = 2
"""One is not enough: the first may close a window that had ended before the process did."""


@dataclass(slots=True)
class _Left:
    """What must close before a process can be forgotten."""

    windows: int
    strata: int


class Retention:
    """A process goes when two windows have closed since its end was known, and the strata that were open then.

    Windows may be longer than strata, or shorter.
    """

    def __init__(self) -> None:
        self._left: dict[ProcessKey, _Left] = {}

    def __contains__(self, process: ProcessKey) -> bool:
        """Whether it has ended and is not forgotten."""
        return process in self._left

    def ended(self, processes: Iterable[ProcessKey], open_strata: int) -> None:
        """No further call of these will come."""
        self._left.update((process, _Left(_WINDOWS, open_strata)) for process in processes)

    def lives(self, process: ProcessKey) -> None:
        """It goes on, as another program."""
        del self._left[process]

    def closed(self, *, windows: int = 0, strata: int = 0) -> list[ProcessKey]:
        """So many have closed; the processes that can be forgotten now."""
        for left in self._left.values():
            left.windows -= windows
            left.strata -= strata
        gone = [p for p, left in self._left.items() if left.windows <= 0 and left.strata <= 0]
        for process in gone:
            del self._left[process]
        return gone
