"""What is known of ended processes and forgotten stacks, until no open window or stratum can refer to it any more."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_WINDOWS: Final = 2
"""One is not enough: the first may close a window that had ended before the process did."""


@dataclass(slots=True)
class _Left:
    """What must close before something can be forgotten."""

    windows: int
    stratum: int
    """The last one that had been opened."""


class Retention(Generic[Key]):
    """Something goes when two windows have closed since its end was known, and the strata that were open then.

    Windows may be longer than strata, or shorter. Strata are counted from 1, and need not close in their order.
    """

    def __init__(self) -> None:
        self._left: dict[Key, _Left] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether it has ended and is not forgotten."""
        return key in self._left

    def ended(self, keys: Iterable[Key], stratum: int) -> None:
        """No further call of these will come. `stratum`: the last one that has been opened."""
        self._left.update((key, _Left(_WINDOWS, stratum)) for key in keys)

    def lives(self, key: Key) -> None:
        """It goes on after all."""
        del self._left[key]

    def closed(self, windows: int, oldest: int) -> list[Key]:
        """So many windows have closed, and all strata before `oldest`; what can be forgotten now."""
        for left in self._left.values():
            left.windows -= windows
        gone = [
            key for key, left in self._left.items() if left.windows <= 0 and left.stratum < oldest
        ]
        for key in gone:
            del self._left[key]
        return gone
