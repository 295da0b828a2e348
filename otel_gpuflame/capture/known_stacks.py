"""Which stacks have been delivered, and which of them can be let go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from otel_gpuflame.events.frames import ProcessKey, StackKey

MAX_STACKS: Final = 50_000
"""A PyTorch process has some hundreds of stacks of calls, and CPU samples add about 100 new ones a second."""
_LET_GO: Final = MAX_STACKS // 10
NO_STACK: Final = StackKey(0, 0)


class KnownStacks:
    """Least recently used stacks go first. Whoever lets one go must make BPF send it again with its next use."""

    def __init__(self, max_stacks: int = MAX_STACKS) -> None:
        self._max_stacks = max_stacks
        self._owners: OrderedDict[StackKey, ProcessKey] = OrderedDict()

    def __contains__(self, key: StackKey) -> bool:
        return key in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, key: StackKey, process: ProcessKey) -> None:
        """A stack has been delivered."""
        self._owners[key] = process

    def unknown(self, keys: Iterable[StackKey]) -> list[StackKey]:
        """Those of `keys` that calls refer to and that were never delivered; the others count as used now."""
        missing = []
        for key in keys:
            if key in self._owners:
                self._owners.move_to_end(key)
            elif key != NO_STACK:
                missing.append(key)
        return missing

    def let_go(self) -> tuple[StackKey, ...]:
        """The least recently used stacks, if there are too many."""
        if len(self._owners) <= self._max_stacks:
            return ()
        count = len(self._owners) - self._max_stacks + min(_LET_GO, self._max_stacks // 10)
        return tuple(self._owners.popitem(last=False)[0] for _ in range(count))

    def forget(self, process: ProcessKey) -> tuple[StackKey, ...]:
        """The process has ended: its stacks, which are no longer known."""
        keys = tuple(key for key, owner in self._owners.items() if owner == process)
        for key in keys:
            del self._owners[key]
        return keys
