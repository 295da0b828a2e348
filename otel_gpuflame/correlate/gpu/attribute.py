"""Rows of `ATTRIBUTION`: the fields of a call, and what stands at the leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import ATTRIBUTION, AttributionArray
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.wire_gpu import GpuKind

_OF_CALL: Final = tuple(name for name in ATTRIBUTION.names or () if name in (wire.CALL.names or ()))

# CUpti_ActivityMemcpyKind, by the call that is named after it.
_COPIES: Final = {
    1: "cuMemcpyHtoD",
    2: "cuMemcpyDtoH",
    3: "cuMemcpyHtoA",
    4: "cuMemcpyAtoH",
    5: "cuMemcpyAtoA",
    6: "cuMemcpyAtoD",
    7: "cuMemcpyDtoA",
    8: "cuMemcpyDtoD",
    10: "cuMemcpyPeer",
}


def _copy_table() -> NDArray[np.uint16]:
    table = np.full(max(_COPIES) + 1, apis.BY_NAME["cuMemcpy"].id, np.uint16)
    for kind, name in _COPIES.items():
        table[kind] = apis.BY_NAME[name].id
    return table


_COPY_APIS: Final = _copy_table()
_SET_API: Final = apis.BY_NAME["cuMemsetD8"].id


@dataclass(frozen=True, slots=True)
class Part:
    """Rows to be made: one for each of `of` (calls, or joined executions, for their launches), with `columns` set.

    With `places` (n,) for those of them, and in their order: that saves a copy of much longer rows.
    """

    of: NDArray[np.void]
    places: NDArray[np.intp] | None
    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.of) if self.places is None else len(self.places)


def part(of: NDArray[np.void], places: NDArray[np.intp] | None = None, **columns: Any) -> Part:
    """See `Part`."""
    return Part(of, places, columns)


def attributions(parts: Sequence[Part]) -> AttributionArray:
    """The rows of all parts, made in place: to copy them once more would take a third of the time."""
    lengths = [len(each) for each in parts]
    rows = np.zeros(sum(lengths), ATTRIBUTION)
    begin = 0
    for each, length in zip(parts, lengths, strict=True):
        some = rows[begin : begin + length]
        for name in _OF_CALL:
            column = each.of[name]
            some[name] = column if each.places is None else column.take(each.places, axis=0)
        some["device"] = NO_DEVICE
        for name, value in each.columns.items():
            some[name] = value
        begin += length
    return rows


def what_ran(executions: JoinedArray, places: NDArray[np.intp]) -> dict[str, Any]:
    """Columns for a leaf that is one of `executions`."""
    return {
        "name": kernel_names(executions)[places],
        "leaf_api": leaf_apis(executions)[places],
        "device": executions["device"][places],
    }


def asked_ns(executions: JoinedArray) -> NDArray[np.uint64]:
    """(n,) when each was launched; when it began, where no launch is known."""
    launched = executions["launch_start_ns"]
    return np.where(launched > 0, launched, executions["start_ns"]).astype(np.uint64)


def leaf_apis(executions: JoinedArray) -> NDArray[np.uint16]:
    """(n,) what each did, as the API whose `detail` says it: 0 for a kernel.

    The execution knows better than its launch: `cuMemcpy` does not say which way, and a graph launch not what.
    """
    kinds, detail = executions["kind"], executions["detail"]
    known = np.where(detail < len(_COPY_APIS), detail, 0)
    copies = np.where((known == 0) & (executions["api"] != 0), executions["api"], _COPY_APIS[known])
    others = np.where(kinds == GpuKind.SET, _SET_API, 0)
    return np.where(kinds == GpuKind.COPY, copies, others).astype(np.uint16)


def kernel_names(executions: JoinedArray) -> NDArray[np.uint64]:
    """(n,) handle of each kernel's name; 0 for copies and sets."""
    return np.where(executions["kind"] == GpuKind.KERNEL, executions["name"], 0).astype(np.uint64)
