"""Which span a call belongs to."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag

# The ids of a call as words: a column of bytes inside a record cannot be viewed as words without a copy.
_OFFSETS: Final = {name: place[1] for name, place in (wire.CALL.fields or {}).items()}
_ID_WORDS: Final[np.dtype[Any]] = np.dtype(
    {
        "names": ["trace_id", "span_id", "local_root_span_id"],
        "formats": [("<u8", (2,)), "<u8", "<u8"],
        "offsets": [_OFFSETS[name] for name in ("trace_id", "span_id", "local_root_span_id")],
        "itemsize": wire.CALL.itemsize,
    }
)


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
    ids = rows.view(_ID_WORDS)
    span = ids["span_id"]
    if mode is SpanLink.LOCAL_ROOT:
        has_root = (rows["flags"] & CallFlag.HAS_LOCAL_ROOT) != 0
        span = np.where(has_root, ids["local_root_span_id"], span)
    columns = np.empty((3, len(rows)), np.uint64)
    columns[:2] = ids["trace_id"].T
    columns[2] = span
    columns *= has_link
    return columns.T
