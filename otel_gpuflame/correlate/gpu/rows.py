"""What the parts of this package hand to each other: an execution with the launch that asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import EXECUTION

JoinedArray: TypeAlias = NDArray[np.void]
"""Structured array of `JOINED`."""

OF_LAUNCH: Final = (
    "stream",
    "object",
    "stack_hash",
    "thread_pointer",
    "tid",
    "trace_id",
    "span_id",
    "local_root_span_id",
    "api",
    "flags",
)
"""Fields of the call that made the launch, under their names in `wire.CALL`."""

_RENAMED: Final = {
    "launch_start_ns": "start_ns",
    "launch_end_ns": "end_ns",
    "launch_kind": "kind",
    # The same as of the execution; beside the rest of what attributions take over.
    "tgid": "tgid",
    "process_start_ns": "process_start_ns",
}


def _row_dtype() -> np.dtype[Any]:
    """A whole row of `EXECUTION` with a whole one of `wire.CALL` behind it: two copies make a row, not thirty."""
    executions: Mapping[str, Any] = EXECUTION.fields or {}
    calls: Mapping[str, Any] = wire.CALL.fields or {}
    places = {name: place[:2] for name, place in executions.items()}
    of_calls = {name: name for name in OF_LAUNCH} | _RENAMED
    for name, of_call in of_calls.items():
        dtype, offset = calls[of_call][:2]
        places[name] = (dtype, EXECUTION.itemsize + offset)
    # Where the execution has room left.
    places["no_launch"] = (np.dtype("|u1"), EXECUTION.itemsize - 1)
    return np.dtype(
        {
            "names": list(places),
            "formats": [dtype for dtype, _ in places.values()],
            "offsets": [offset for _, offset in places.values()],
            "itemsize": EXECUTION.itemsize + wire.CALL.itemsize,
        }
    )


JOINED: Final = _row_dtype()
"""An execution (kinds KERNEL, COPY, SET): the fields of `EXECUTION`, and of its launch:

`launch_start_ns`: when the thread entered the call (the probe's time). `launch_end_ns`: when the driver's function
returned. `launch_kind`: `wire.Kind`. `thread_pointer`, and the other fields of `OF_LAUNCH`: who asked, where from, on
which stream. `no_launch`: `NoLaunch`; where it is not NONE all fields of the launch are 0.

Arrays of it are sorted by device, then start. Every row has start_ns <= end_ns; no row comes twice.
"""


def by_device(rows: JoinedArray) -> JoinedArray:
    """`rows` in the order in which they are handed on: by device, start, end."""
    device, start, end = rows["device"], rows["start_ns"], rows["end_ns"]
    later = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] >= end[:-1]))
    if bool(((device[1:] > device[:-1]) | ((device[1:] == device[:-1]) & later)).all()):
        # Streams that take turns: parts one after the other are in order, and rows are long.
        return rows
    return rows.take(np.lexsort((rows["end_ns"], rows["start_ns"], rows["device"])))


def concatenate(parts: Sequence[NDArray[np.void]], dtype: np.dtype[Any]) -> NDArray[np.void]:
    """`parts`, all of `dtype`, in one. As plain bytes: numpy copies records field by field, ten times slower."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, dtype)
    whole = np.dtype((np.void, dtype.itemsize))
    return np.concatenate([part.view(whole) for part in parts]).view(dtype)
