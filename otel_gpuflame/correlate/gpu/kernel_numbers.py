"""Kernels by number: the same for the same name, in whatever process and by whatever handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.recent_handles import RecentHandles
from otel_gpuflame.events.records import HandleName

_SWEEP_FROM: Final = 1 << 12
"""Names. Processes that load modules for days give their handles new ones, and end no sooner."""
_MAX_GONE: Final = 1 << 10
"""Handles that had to go for others of their process: their names may have 4 KB each."""


class KernelNumbers:
    """Numbers are never used again. A name that no handle has any more may get another one when it comes back."""

    def __init__(self, in_use: Callable[[], Iterable[int]] = tuple) -> None:
        """`in_use` gives the numbers that are to keep their names though no handle has them."""
        self._in_use = in_use
        self._by_handle: dict[ProcessKey, RecentHandles[int]] = {}
        self._inferred: dict[ProcessKey, RecentHandles[int]] = {}
        """Of handles that nobody has named."""
        self._by_name: dict[str, int] = {}
        self._last = 0
        self._sweep_from = _SWEEP_FROM
        self._gone = 0
        """Handles that had to go since the last sweep."""

    def __len__(self) -> int:
        """Names that are remembered."""
        return len(self._by_name)

    def learn(self, names: Iterable[HandleName]) -> None:
        """From now on handles mean these."""
        for name in names:
            number = self._by_name.get(name.name)
            if number is None:
                self._last += 1
                number = self._by_name[name.name] = self._last
            handles = self._by_handle.setdefault(name.process, RecentHandles())
            self._gone += len(handles.put(name.handle, number, len(name.name)))
        if len(self._by_name) > self._sweep_from or self._gone > _MAX_GONE:
            self._sweep()

    def infer(
        self, process: ProcessKey, handles: NDArray[np.uint64], numbers: NDArray[np.uint64]
    ) -> None:
        """Handles mean these as long as nobody names them, and it is not doubted."""
        known = self._inferred.setdefault(process, RecentHandles())
        for handle, number in zip(handles.tolist(), numbers.tolist(), strict=True):
            known.put(handle, number, 0)

    def doubt(self, process: ProcessKey, handles: NDArray[np.uint64]) -> None:
        """What these were inferred to mean is not so."""
        known = self._inferred.get(process)
        if known is not None:
            for handle in handles.tolist():
                known.drop(handle)

    def has_inferred(self, process: ProcessKey) -> bool:
        """Whether handles of it mean something that nobody has said."""
        return bool(self._inferred.get(process))

    def forget(self, gone: Set[ProcessKey]) -> None:
        """Handles of processes of which nothing more comes, and the names that only these have had."""
        had_names = [self._by_handle.pop(process, None) is not None for process in gone]
        for process in gone:
            self._inferred.pop(process, None)
        if any(had_names):
            self._sweep()

    def of(self, process: ProcessKey, handles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(n,) which kernel each handle means now; 0 where it has no name."""
        distinct, places = np.unique(handles, return_inverse=True)
        maps = [m[process] for m in (self._by_handle, self._inferred) if process in m]
        numbers = [
            next((number for known in maps if (number := known.get(handle))), 0)
            for handle in distinct.tolist()
        ]
        return np.array(numbers, np.uint64)[places]

    def _sweep(self) -> None:
        used = set(self._in_use())
        for numbers in (*self._by_handle.values(), *self._inferred.values()):
            used.update(numbers.values())
        self._by_name = {name: value for name, value in self._by_name.items() if value in used}
        # Looking at all of them each time would cost more the more names there are.
        self._gone = 0
        self._sweep_from = max(_SWEEP_FROM, 2 * len(self._by_name))
