"""Signatures: by what launches and executions of one kind are told from those of another."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Names
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.events.wire_gpu import GpuKind

_KIND_SHIFT: Final = np.uint64(56)
_WHICH: Final = np.uint64((1 << 56) - 1)
KIND_OF: Final = np.zeros(256, np.uint64)
"""(256,) kind of the call that launches executions of a kind; 0 where none does."""
KIND_OF[[GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET]] = [Kind.LAUNCH, Kind.COPY, Kind.SET]


class Signatures:
    """Knows kernels by name. Both sides name them: the program by function handles, CUPTI by text."""

    def __init__(self) -> None:
        self._names: dict[tuple[ProcessKey, int], int] = {}
        self._name_ids: dict[str, int] = {}
        self._last_id = 0

    def __len__(self) -> int:
        """Names that are remembered."""
        return len(self._name_ids)

    def learn(self, event: Names) -> None:
        """Names that either side gave."""
        for name in event.names:
            identity = self._name_ids.get(name.name)
            if identity is None:
                self._last_id += 1
                identity = self._name_ids[name.name] = self._last_id
            self._names[name.process, name.handle] = identity

    def forget(self, gone: Set[ProcessKey]) -> None:
        """Handles of processes of which nothing more comes."""
        if not gone:
            return
        self._names = {key: value for key, value in self._names.items() if key[0] not in gone}
        used = set(self._names.values())
        self._name_ids = {name: value for name, value in self._name_ids.items() if value in used}

    def of_calls(self, process: ProcessKey, rows: CallArray) -> NDArray[np.uint64]:
        """(n,) kind, and which kernel or how many bytes."""
        kinds = rows["kind"].astype(np.uint64)
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["object"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def of_executions(self, process: ProcessKey, rows: ExecutionArray) -> NDArray[np.uint64]:
        """The same of executions."""
        kinds = np.where(rows["graph_id"] > 0, np.uint64(Kind.GRAPH_LAUNCH), KIND_OF[rows["kind"]])
        which = np.where(kinds == Kind.LAUNCH, self._name_numbers(process, rows["name"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def _name_numbers(self, process: ProcessKey, handles: NDArray[np.uint64]) -> NDArray[np.uint64]:
        distinct, places = np.unique(handles, return_inverse=True)
        numbers = [self._names.get((process, handle), 0) for handle in distinct.tolist()]
        return np.array(numbers, np.uint64)[places]


def _signatures(
    kinds: NDArray[np.uint64], names: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    which = np.where(kinds == Kind.COPY, sizes & _WHICH, names.astype(np.uint64))
    return (kinds << _KIND_SHIFT) | which
