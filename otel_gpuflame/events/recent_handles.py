"""What the handles of one process mean, as many as there is room for.

Each module that a program loads has handles of its own, and nobody tells when it is unloaded. A program that compiles
kernels for days has millions, of which it uses the last ones and some that are as old as itself: what has not been used
for longest goes. To refuse new ones would leave such a program without the names of what it runs now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

MAX_HANDLES: Final = 1 << 18
"""Of a process: 64 MB with short names."""
MAX_CHARACTERS: Final = 64 << 20
"""Of all their names. One has up to 4 KB, and demangled up to 16,384 characters."""

Value = TypeVar("Value")


class RecentHandles(Generic[Value]):
    """Values by handle. Whatever is put or got is used."""

    def __init__(self) -> None:
        self._items: OrderedDict[int, tuple[Value, int]] = OrderedDict()
        self._characters = 0

    def __len__(self) -> int:
        """Handles that are known."""
        return len(self._items)

    def get(self, handle: int) -> Value | None:
        """What a handle means; None where it is not known, or no longer."""
        found = self._items.get(handle)
        if found is None:
            return None
        self._items.move_to_end(handle)
        return found[0]

    def values(self) -> Iterator[Value]:
        """All that are known."""
        return (value for value, _ in self._items.values())

    def drop(self, handle: int) -> None:
        """From now on a handle means nothing that is known."""
        _, characters = self._items.pop(handle, (None, 0))
        self._characters -= characters

    def put(self, handle: int, value: Value, characters: int) -> list[Value]:
        """From now on a handle means `value`, whose name has so many characters; what had to go for it."""
        _, before = self._items.pop(handle, (None, 0))
        self._items[handle] = value, characters
        self._characters += characters - before
        gone = []
        while len(self._items) > MAX_HANDLES or (
            self._characters > MAX_CHARACTERS and len(self._items) > 1
        ):
            _, (oldest, its_characters) = self._items.popitem(last=False)
            self._characters -= its_characters
            gone.append(oldest)
        return gone
