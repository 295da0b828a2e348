"""Rows of both sides, written down one by one: what probes saw, and what the driver recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.events.wire_gpu import GpuKind

PROCESS, OTHER = ProcessKey(100, 1), ProcessKey(200, 2)
THREAD, SECOND = 0x7F00_0000_1000, 0x7F00_0000_2000
"""Thread pointers."""


def call(
    stack: int, at: int, until: int | None = None, api: str = "cuLaunchKernel", **fields: Any
) -> CallArray:
    """A call with this stack; `until` None: it has no return probe. `process`, `thread`, and columns of `CALL`."""
    process: ProcessKey = fields.pop("process", PROCESS)
    known = apis.BY_NAME[api]
    row = np.zeros(1, wire.CALL)
    row["start_ns"], row["api"], row["kind"] = at, known.id, known.kind
    row["tgid"] = row["tid"] = process.tgid
    row["process_start_ns"] = process.start_ns
    row["thread_pointer"] = fields.pop("thread", THREAD)
    row["stack_hash"][:, 0] = stack
    if until is not None:
        row["end_ns"], row["flags"] = until, CallFlag.RETURNED
    return _with(row, fields)


def launched(id_: int, begin: int, end: int, **fields: Any) -> ExecutionArray:
    """The driver's record of a launch with a correlation id."""
    row = _record(GpuKind.API, id_, begin, end, fields.pop("process", PROCESS))
    row["thread_pointer"] = fields.pop("thread", THREAD)
    return _with(row, fields)


def executed(id_: int, start: int, end: int, **fields: Any) -> ExecutionArray:
    """An execution of the launch with a correlation id."""
    kind = fields.pop("kind", GpuKind.KERNEL)
    row = _record(kind, id_, start, end, fields.pop("process", PROCESS))
    row["context_id"], row["stream_id"] = 1, 7
    return _with(row, fields)


def _record(kind: GpuKind, id_: int, start: int, end: int, process: ProcessKey) -> ExecutionArray:
    row = np.zeros(1, EXECUTION)
    row["kind"], row["correlation_id"] = kind, id_
    row["start_ns"], row["end_ns"] = start, end
    row["tgid"], row["process_start_ns"] = process.tgid, process.start_ns
    return row


def _with(row: NDArray[np.void], fields: dict[str, Any]) -> NDArray[np.void]:
    for name, value in fields.items():
        row[name] = value
    return row
