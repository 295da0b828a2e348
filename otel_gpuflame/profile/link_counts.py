"""Counts which events are linked to a span, and why others are not."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate import spans as state
from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.events.attributions import AttributionArray, Measure
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.attribution_columns import LINK_COLUMN as ATTRIBUTION_LINK_COLUMN
from otel_gpuflame.profile.call_columns import LINK_COLUMN as CALL_LINK_COLUMN
from otel_gpuflame.profile.ledger import (
    CALL_KINDS,
    EXECUTION_KIND,
    LINKED,
    NO_SPAN,
    NOT_SAMPLED,
    TOO_MANY,
    Ledger,
)
from otel_gpuflame.profile.linked_spans import LinkedSpans

_LAST_LINK_WORD: Final = 2
_KIND_SHIFT, _KIND, _MEASURE = np.uint64(24), np.uint64(0xFF), np.uint64(0x7F)
_NAMES: Final = {kind.value: kind.name.lower() for kind in Kind if kind.name.lower() in CALL_KINDS}
"""Of calls of the driver library. Samples of threads are linked too, but are no calls."""

_Sums = NDArray[np.int64]


class LinkCounts:
    """Takes the links of spans beyond a limit away, and enters all into the books."""

    def __init__(self, most_spans: int | None, ledger: Ledger) -> None:
        """`most_spans` of a process are linked in a window; None: all."""
        self._most = most_spans
        self._links = ledger.links

    def calls(self, rows: CallArray, counts: _Sums, groups: Groups, spans: LinkedSpans) -> Groups:
        """Groups of `call_columns`, resolved, of calls that were made `counts` times each; `spans` of their window."""
        kinds = groups.keys[:, 0] >> _KIND_SHIFT & _KIND
        calls, is_linked = groups.sums[:, 0], _is_linked(groups, CALL_LINK_COLUMN)
        self._count_calls(kinds << np.uint64(1) | is_linked, calls)
        unsampled = _unsampled(rows)
        if len(unsampled):
            self._move(rows["kind"][unsampled], counts[unsampled], NO_SPAN, NOT_SAMPLED)
        if self._most is None:
            return groups
        limited, over = spans.limit(groups, CALL_LINK_COLUMN, self._most)
        if limited is not groups:
            self._move(kinds[over], calls[over], LINKED, TOO_MANY)
        return limited

    def attributions(self, rows: AttributionArray, groups: Groups, spans: LinkedSpans) -> Groups:
        """Groups of `attribution_columns`, resolved. Each execution has one attribution of its time."""
        is_time = groups.keys[:, 0] >> _KIND_SHIFT & _MEASURE == Measure.GPU_TIME
        executions = groups.sums[:, 1]
        linked = int(executions[is_time & _is_linked(groups, ATTRIBUTION_LINK_COLUMN)].sum())
        is_unsampled = rows["measure"][_unsampled(rows)] == Measure.GPU_TIME
        not_sampled = int(is_unsampled.sum())
        self._add(EXECUTION_KIND, LINKED, linked)
        self._add(EXECUTION_KIND, NOT_SAMPLED, not_sampled)
        none = int(executions[is_time].sum()) - linked - not_sampled
        self._add(EXECUTION_KIND, NO_SPAN, none)
        if self._most is None:
            return groups
        limited, over = spans.limit(groups, ATTRIBUTION_LINK_COLUMN, self._most)
        lost = int(executions[is_time & over].sum())
        self._add(EXECUTION_KIND, LINKED, -lost)
        self._add(EXECUTION_KIND, TOO_MANY, lost)
        return limited

    def _count_calls(self, codes: NDArray[np.uint64], calls: _Sums) -> None:
        """`codes`: kind << 1 | whether linked."""
        for code, count in _sums(codes, calls):
            if (name := _NAMES.get(code >> 1)) is not None:
                self._add(name, LINKED if code & 1 else NO_SPAN, count)

    def _move(self, kinds: NDArray[Any], calls: _Sums, before: str, after: str) -> None:
        for kind, count in _sums(kinds, calls):
            if (name := _NAMES.get(kind)) is not None:
                self._add(name, before, -count)
                self._add(name, after, count)

    def _add(self, kind: str, outcome: str, count: int) -> None:
        if count:
            self._links[kind, outcome] += count


def _is_linked(groups: Groups, column: int) -> NDArray[np.bool_]:
    linked: NDArray[np.bool_] = groups.keys[:, column + _LAST_LINK_WORD] != 0
    return linked


def _unsampled(rows: NDArray[np.void]) -> NDArray[np.intp]:
    """Which rows are of a span that is not sampled: in most programs none, so ids are looked at last."""
    found = np.flatnonzero(rows["flags"] & state.SAMPLED_FLAGS == state.HAS_SPAN)
    return found[state.span_states(rows[found]) == state.NOT_SAMPLED] if len(found) else found


def _sums(codes: NDArray[Any], counts: _Sums) -> list[tuple[int, int]]:
    """Codes that occur, and the sum of their counts: whole numbers, exact in floating point."""
    sums = np.bincount(codes.astype(np.int64), counts)
    return [(code, int(sums[code])) for code in np.flatnonzero(sums).tolist()]
