"""Which streams wait for the legacy default stream of their context, and it for them.

Streams do so unless they were created not to, which no probe sees. One that ran at the same time as the default stream
is independent; the others are taken for dependent as long as nothing that happened says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import Codes, codes_of, shared_codes
from otel_gpuflame.correlate.gpu.resolve import legacy_streams
from otel_gpuflame.correlate.gpu.streams import MEANING, StreamTable
from otel_gpuflame.correlate.gpu.work import Work

_OVERLAP_NS: Final = np.uint64(1_000)
"""Times of one device are exact to some 10 ns: what overlaps by more ran at the same time."""
_STREAM: Final = ("process_start_ns", "tgid", "context_id", "stream_id")
_MAX_INDEPENDENT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Defaults:
    """Columns over the lanes of some work."""

    legacy: Codes
    """The lane of the legacy default stream of the same context; -1: it did nothing."""
    is_legacy: NDArray[np.bool_]
    is_dependent: NDArray[np.bool_]
    """Another stream that may synchronise with it."""


def find_defaults(work: Work, table: StreamTable) -> Defaults:
    """Lanes of default streams, and which lanes may depend on them."""
    is_legacy = _is_among(work, legacy_streams(table))
    context, _ = codes_of(*(work.lanes[name] for name in _STREAM[:3]))
    of_context = np.full(len(work.lanes) + 1, -1, np.int64)
    of_context[context[is_legacy]] = np.flatnonzero(is_legacy)
    legacy = of_context[context]
    free = _is_among(work, table.independent)
    is_dependent = (legacy >= 0) & ~is_legacy & ~free
    return Defaults(legacy, is_legacy, is_dependent & ~_overlaps(work, legacy, is_dependent))


def remember(table: StreamTable, work: Work, defaults: Defaults) -> StreamTable:
    """The table with streams that this work shows to be independent."""
    shown = (defaults.legacy >= 0) & ~defaults.is_legacy & ~defaults.is_dependent
    shown &= ~_is_among(work, table.independent)
    more = np.zeros(int(shown.sum()), MEANING)
    for name in _STREAM:
        more[name] = work.lanes[name][shown]
    rows = np.concatenate([table.independent, more])
    over = max(len(rows) - _MAX_INDEPENDENT, 0)
    return replace(table, independent=rows[over:], forgotten=table.forgotten + over)


def _is_among(work: Work, streams: NDArray[np.void]) -> NDArray[np.bool_]:
    mine, theirs, count = shared_codes(
        [work.lanes[name] for name in _STREAM], [streams[name] for name in _STREAM]
    )
    found = np.zeros(count, np.bool_)
    found[theirs] = True
    return found[mine]


def _overlaps(work: Work, legacy: Codes, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(lanes,) whether something on the lane ran while its legacy lane was busy."""
    shown = np.zeros(len(work.lanes), np.bool_)
    rows = np.flatnonzero(candidates[work.lane])
    long = work.end_ns[rows] - work.start_ns[rows] > _OVERLAP_NS
    rows = rows[long]
    lanes = legacy[work.lane[rows]]
    place = work.keys.find(work.by_start, lanes, work.end_ns[rows] - _OVERLAP_NS, "left") - 1
    other = np.maximum(place, 0)
    runs = (place >= 0) & (work.lane[other] == lanes)
    runs &= work.reach_ns[other] > work.start_ns[rows] + _OVERLAP_NS
    shown[work.lane[rows[runs]]] = True
    return shown
