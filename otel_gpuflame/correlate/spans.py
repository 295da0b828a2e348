"""Which span a call belongs to."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.wire import CallFlag

_ID_WORDS: Final[dict[str, Any]] = {
    "trace_id": ("<u8", (2,)),
    "span_id": "<u8",
    "local_root_span_id": "<u8",
}


@lru_cache(16)
def _id_words(rows: np.dtype[Any]) -> np.dtype[Any]:
    """The ids of a row as words: a column of bytes inside a record cannot be viewed as words without a copy."""
    fields: Any = rows.fields
    return np.dtype(
        {
            "names": list(_ID_WORDS),
            "formats": list(_ID_WORDS.values()),
            "offsets": [fields[name][1] for name in _ID_WORDS],
            "itemsize": rows.itemsize,
        }
    )


HAS_SPAN: Final = int(CallFlag.HAS_SPAN)
SAMPLED_FLAGS: Final = int(CallFlag.HAS_SPAN | CallFlag.SPAN_SAMPLED)
NO_SPAN, NOT_SAMPLED, LINKED = 0, 1, 2
"""What a row has of a span: nothing, one that no backend has a trace of, or one to link to."""


class SpanLink(Enum):
    """Which of a thread's spans samples link to."""

    LOCAL_ROOT = "local_root"
    """The first span of the request in this process: what Grafana asks for when one clicks a service's span."""
    ACTIVE = "active"
    """The innermost span."""


def span_states(rows: NDArray[np.void]) -> NDArray[np.int8]:
    """NO_SPAN, NOT_SAMPLED or LINKED for each row. Zeros are no ids, whatever a publisher says."""
    ids = rows.view(_id_words(rows.dtype))
    flags, trace = rows["flags"], ids["trace_id"]
    has_span = (flags & HAS_SPAN) != 0
    has_span &= (ids["span_id"] != 0) & (trace[:, 0] | trace[:, 1] != 0)
    states: NDArray[np.int8] = has_span.astype(np.int8)
    states += has_span & (flags & SAMPLED_FLAGS == SAMPLED_FLAGS)
    return states


def link_columns(rows: NDArray[np.void], mode: SpanLink) -> NDArray[np.uint64]:
    """(n, 3) words: trace id (16 bytes) and span id (8) as they lie in memory; zeros where there is no link.

    `rows` have the ids and flags of calls: dtype `wire.CALL`, or `ATTRIBUTION`.

    Only sampled spans are linked: a backend has no trace to show for the others. A publisher that does not say which
    span is the local root gets the active one.
    """
    ids = rows.view(_id_words(rows.dtype))
    span = ids["span_id"]
    if mode is SpanLink.LOCAL_ROOT:
        has_root = (rows["flags"] & CallFlag.HAS_LOCAL_ROOT) != 0
        has_root &= ids["local_root_span_id"] != 0
        span = np.where(has_root, ids["local_root_span_id"], span)
    columns = np.empty((3, len(rows)), np.uint64)
    columns[:2] = ids["trace_id"].T
    columns[2] = span
    columns *= span_states(rows) == LINKED
    return columns.T
