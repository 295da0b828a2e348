"""Signatures: by what launches and executions of one kind are told from those of another."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.kernel_numbers import KernelNumbers
from otel_gpuflame.correlate.gpu.unnamed import ExecutedKernels, LaunchedKernels, learn_by_order
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
        self._kernels = KernelNumbers()

    def learn(self, event: Names) -> None:
        """Names that either side gave."""
        self._kernels.learn(event.names)

    def forget(self, gone: Set[ProcessKey]) -> None:
        """Handles of processes of which nothing more comes."""
        self._kernels.forget(gone)

    def learn_by_order(
        self,
        process: ProcessKey,
        launches: CallArray,
        executions: ExecutionArray,
    ) -> None:
        """Kernels of handles that have no name, from both sides of a stretch: launches in the order of their entry,
        their first executions in that of their ids.
        """
        launches = launches.take(np.flatnonzero(launches["kind"] == Kind.LAUNCH))
        kernels = self._kernels.of(process, launches["object"])
        if kernels.all() and not self._kernels.has_inferred(process):
            return
        is_kernel = (executions["kind"] == GpuKind.KERNEL) & (executions["graph_id"] == 0)
        executions = executions.take(np.flatnonzero(is_kernel))
        learned = learn_by_order(
            LaunchedKernels(
                launches["object"],
                kernels,
                launches["start_ns"].astype(np.int64),
                launches["thread_pointer"],
            ),
            ExecutedKernels(
                self._kernels.of(process, executions["name"]),
                executions["start_ns"].astype(np.int64),
            ),
        )
        self._kernels.infer(process, learned.handles, learned.kernels)
        self._kernels.doubt(process, learned.doubtful)

    def of_calls(self, process: ProcessKey, rows: CallArray) -> NDArray[np.uint64]:
        """(n,) kind, and which kernel or how many bytes."""
        kinds = rows["kind"].astype(np.uint64)
        which = np.where(kinds == Kind.LAUNCH, self._kernels.of(process, rows["object"]), 0)
        return _signatures(kinds, which, rows["bytes"])

    def of_executions(self, process: ProcessKey, rows: ExecutionArray) -> NDArray[np.uint64]:
        """The same of executions."""
        kinds = np.where(rows["graph_id"] > 0, np.uint64(Kind.GRAPH_LAUNCH), KIND_OF[rows["kind"]])
        which = np.where(kinds == Kind.LAUNCH, self._kernels.of(process, rows["name"]), 0)
        return _signatures(kinds, which, rows["bytes"])


def _signatures(
    kinds: NDArray[np.uint64], names: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    which = np.where(kinds == Kind.COPY, sizes & _WHICH, names.astype(np.uint64))
    return (kinds << _KIND_SHIFT) | which
