"""Rows of `ATTRIBUTION`: the fields of a call, and what stands at the leaf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import ATTRIBUTION, OF_CALL, AttributionArray
from otel_gpuflame.events.executions import EXECUTION, NO_DEVICE
from otel_gpuflame.events.wire_gpu import GpuKind

_BLOCK: Final = 4_096
"""Rows that are made at a time: 0.5 MB, which stay in the caches until they are complete."""
_DEFAULTS: Final[dict[str, Any]] = {
    "sampled_ns": 0,
    "name": 0,
    "device": NO_DEVICE,
    "leaf_api": 0,
    "gaps": 0,
    "mode": 0,
    "no_launch": 0,
}
"""Of columns that need not be given."""


def _stretches(dtype: np.dtype[Any], first: int, second: int) -> np.dtype[Any]:
    """`dtype` as the two stretches of bytes that `OF_CALL` says, which begin at these places."""
    lengths = [end - begin for begin, end in OF_CALL]
    return np.dtype(
        {
            "names": ["first", "second"],
            "formats": [f"V{length}" for length in lengths],
            "offsets": [first, second],
            "itemsize": dtype.itemsize,
        }
    )


_OF_CALL: Final = {
    wire.CALL: _stretches(wire.CALL, OF_CALL[0][0], OF_CALL[1][0]),
    JOINED: _stretches(
        JOINED, EXECUTION.itemsize + OF_CALL[0][0], EXECUTION.itemsize + OF_CALL[1][0]
    ),
    ATTRIBUTION: _stretches(ATTRIBUTION, 0, OF_CALL[0][1] - OF_CALL[0][0]),
}
"""Where rows have the fields of a call."""

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
    rows = np.empty(sum(lengths), ATTRIBUTION)
    begin = 0
    for each, length in zip(parts, lengths, strict=True):
        _fill(rows[begin : begin + length], each)
        begin += length
    return rows


def _fill(rows: AttributionArray, each: Part) -> None:
    source, target = each.of.view(_OF_CALL[each.of.dtype]), rows.view(_OF_CALL[ATTRIBUTION])
    columns = {
        name: np.broadcast_to(np.asarray(value), len(rows))
        for name, value in (_DEFAULTS | each.columns).items()
    }
    for begin in range(0, len(rows), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        places = block if each.places is None else each.places[block]
        for name in ("first", "second"):
            target[name][block] = source[name][places]
        for name, column in columns.items():
            rows[name][block] = column[block]


def what_ran(executions: JoinedArray, places: NDArray[np.intp]) -> dict[str, Any]:
    """Columns for a leaf that is one of `executions`."""
    return {
        "name": kernel_names(executions, places),
        "leaf_api": leaf_apis(executions, places),
        "device": executions["device"][places],
    }


def asked_ns(
    executions: JoinedArray, which: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.uint64]:
    """(n,) when each of `which` was launched; when it began, where no launch is known."""
    launched: NDArray[np.uint64] = executions["launch_start_ns"][which]
    missing = np.flatnonzero(launched == 0)
    if not len(missing):
        return launched
    return np.where(launched > 0, launched, executions["start_ns"][which])


def leaf_apis(
    executions: JoinedArray, which: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.uint16]:
    """(n,) what each of `which` did, as the API whose `detail` says it: 0 for a kernel.

    The execution knows better than its launch: `cuMemcpy` does not say which way, and a graph launch not what.
    """
    kinds = executions["kind"][which]
    found = np.zeros(len(kinds), np.uint16)
    # Most are kernels.
    places = np.flatnonzero(kinds != GpuKind.KERNEL)
    if not len(places):
        return found
    kinds = kinds[places]
    detail, api = (executions[name][which][places] for name in ("detail", "api"))
    known = np.where(detail < len(_COPY_APIS), detail, 0)
    copies = np.where((known == 0) & (api != 0), api, _COPY_APIS[known])
    others = np.where(kinds == GpuKind.SET, _SET_API, 0)
    found[places] = np.where(kinds == GpuKind.COPY, copies, others)
    return found


def kernel_names(
    executions: JoinedArray, which: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.uint64]:
    """(n,) handle of the name of each of `which` that is a kernel; 0 for copies and sets."""
    names: NDArray[np.uint64] = executions["name"][which].astype(np.uint64)
    names[executions["kind"][which] != GpuKind.KERNEL] = 0
    return names
