"""Which span a call belongs to."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag


class SpanLink(Enum):
    """Which of a thread's spans samples link to."""

    LOCAL_ROOT = "local_root"
    """The first span of the request in this process: what Grafana asks for when one clicks a service's span."""
    ACTIVE = "active"
    """The innermost span."""


def link_columns(rows: CallArray, mode: SpanLink) -> NDArray[np.uint64]:
    """(n, 3) words: trace id (16 bytes) and span id (8) as they lie in memory; zeros where there is no link.

    Only sampled spans are linked: a backend has no trace to show for the others. A publisher that does not say which
    span is the local root gets the active one.
    """
    linked = CallFlag.HAS_SPAN | CallFlag.SPAN_SAMPLED
    has_link = (rows["flags"] & linked) == linked
    # Contiguous copies, since a column of bytes inside a record cannot be viewed as words.
    trace = np.ascontiguousarray(rows["trace_id"]).view("<u8")
    span = np.ascontiguousarray(rows["span_id"]).view("<u8")[:, 0]
    if mode is SpanLink.LOCAL_ROOT:
        root = np.ascontiguousarray(rows["local_root_span_id"]).view("<u8")[:, 0]
        has_root = (rows["flags"] & CallFlag.HAS_LOCAL_ROOT) != 0
        span = np.where(has_root, root, span)
    columns = np.empty((len(rows), 3), np.uint64)
    columns[:, :2] = trace
    columns[:, 2] = span
    columns[~has_link] = 0
    return columns
