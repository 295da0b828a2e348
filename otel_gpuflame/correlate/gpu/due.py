"""Executions whose time has come: in order, and each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.backlog import Part, due_of, keys_of
from otel_gpuflame.correlate.gpu.history import History
from otel_gpuflame.correlate.gpu.match import Mask, Times, order_by, repeated
from otel_gpuflame.correlate.gpu.rows import concatenate
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray

_IDENTITY: Final = (
    "end_ns",
    "correlation_id",
    "graph_node_id",
    "stream_id",
    "context_id",
    "name",
    "kind",
    "tgid",
    "process_start_ns",
    "device",
)
"""Rows that agree in these and in their start are one execution, delivered twice."""


@dataclass(frozen=True, slots=True)
class Due:
    """Rows by device, start and end, with their ids and times as columns; how many `duplicates` were left out."""

    rows: ExecutionArray
    keys: NDArray[np.uint64]
    starts_ns: Times
    ends_ns: Times
    duplicates: int

    def take(self, places: NDArray[np.intp], duplicates: int) -> Due:
        """Some of the rows."""
        return Due(
            self.rows.take(places),
            self.keys.take(places),
            self.starts_ns.take(places),
            self.ends_ns.take(places),
            duplicates,
        )


def in_order(parts: list[Part], history: History, settled_ns: int) -> Due:
    """The rows of `parts`. What ended by `settled_ns` comes late, and may have come before: see `history`."""
    rows = concatenate([part.rows for part in parts], EXECUTION)
    due = Due(rows, keys_of(parts), rows["start_ns"].astype(np.int64), due_of(parts), 0)
    order = order_by(due.rows["device"], due.starts_ns, due.ends_ns)
    if order is not None:
        due = due.take(order, 0)
    again = _seen_again(due, history, settled_ns)
    return due.take(np.flatnonzero(~again), int(again.sum())) if again.any() else due


def _seen_again(due: Due, history: History, settled_ns: int) -> Mask:
    """Which rows repeat an earlier one, or one of the past."""
    again = repeated([due.rows[name] for name in _IDENTITY], due.starts_ns)
    late = np.flatnonzero(due.ends_ns <= settled_ns)
    if not len(late):
        return again
    past = history.since(int(due.ends_ns[late].min()) - 1)
    columns = [np.concatenate((past[name], due.rows[name][late])) for name in _IDENTITY]
    starts = np.concatenate((past["start_ns"], due.rows["start_ns"][late]))
    order = np.argsort(starts, kind="stable")
    repeats = np.zeros(len(starts), np.bool_)
    repeats[order] = repeated([column[order] for column in columns], starts[order])
    again[late] |= repeats[len(past) :]
    return again
