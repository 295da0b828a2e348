"""Which window something counts in, and what the windows hold that have not closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups, concatenate
from otel_gpuflame.events.records import CaptureStart
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.linked_spans import LinkedSpans
from otel_gpuflame.profile.model import Window

_COMPACT_FROM_ROWS: Final = 1 << 18
"""Groups of several batches are merged when this many have come together: 18 MiB."""

Selection: TypeAlias = slice | NDArray[np.bool_]
"""Which rows of a batch."""


@dataclass(slots=True)
class Sums:
    """Groups of several batches, merged from time to time."""

    parts: list[Groups] = field(default_factory=list)
    rows: int = 0
    compact_from_rows: int = _COMPACT_FROM_ROWS

    def add(self, groups: Groups) -> None:
        """Take in the groups of a batch."""
        self.parts.append(groups)
        self.rows += len(groups)
        if self.rows > self.compact_from_rows and len(self.parts) > 1:
            self.parts = [concatenate(self.parts)]
            self.rows = len(self.parts[0])
            # Where nearly all groups are distinct, merging at each batch would sort all of them each time.
            self.compact_from_rows = max(_COMPACT_FROM_ROWS, 2 * self.rows)

    def items(self) -> Iterator[tuple[list[int], list[int]]]:
        """(key, sums) of each group."""
        if not self.parts:
            return iter(())
        merged = concatenate(self.parts)
        return zip(merged.keys.tolist(), merged.sums.tolist(), strict=True)


@dataclass(slots=True)
class OpenWindow:
    """What a window holds until it closes. The columns of each are described where they are made."""

    calls: Sums = field(default_factory=Sums)
    attributions: Sums = field(default_factory=Sums)
    kernels: Sums = field(default_factory=Sums)
    spans: LinkedSpans = field(default_factory=LinkedSpans)
    first_ns: int = 0
    last_ns: int = 0
    called: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By process id, when its first driver call began and its last one ended."""

    def note_calls(
        self, process_id: int, starts_ns: NDArray[np.int64], ends_ns: NDArray[np.int64]
    ) -> None:
        """Driver calls of these times, at least one, are in the window."""
        first_ns, last_ns = int(starts_ns.min()), int(ends_ns.max())
        known = self.called.get(process_id, (first_ns, last_ns))
        self.called[process_id] = min(known[0], first_ns), max(known[1], last_ns)

    def used(self, process_id: int, bounds: Window, unix_offset_ns: int) -> Window:
        """The part of the window from the first driver call of a process to the last.

        Where it made none, from the first to the last of all; where nobody did, all of it.
        """
        mine = self.called.get(process_id)
        times = [mine] if mine is not None else list(self.called.values())
        if not times:
            return bounds
        begin_ns = max(min(first for first, _ in times) + unix_offset_ns, bounds.start_unix_ns)
        end_ns = min(max(last for _, last in times) + unix_offset_ns + 1, bounds.end_unix_ns)
        return Window(begin_ns, end_ns) if begin_ns < end_ns else bounds


class Windows:
    """Windows of `window_ns`, counted from the start of the capture. None: one over all of it."""

    def __init__(self, window_ns: int | None, ledger: Ledger) -> None:
        self._window_ns = window_ns
        self._ledger = ledger
        self._start: CaptureStart | None = None
        self._open: dict[int, OpenWindow] = {}
        self._closed_before = 0
        self._last_ns = 0

    @property
    def last_ns(self) -> int:
        """Until when the capture goes on at least."""
        return self._last_ns

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open."""
        return not self._open

    @property
    def unix_offset_ns(self) -> int | None:
        """What to add to get unix time; None before the start of the capture."""
        return self._start.unix_offset_ns if self._start else None

    def begin(self, start: CaptureStart) -> None:
        """Windows are counted from here."""
        self._start = start
        self.note(start.time_ns)

    def note(self, time_ns: int) -> None:
        """The capture goes on until `time_ns` at least."""
        self._last_ns = max(self._last_ns, time_ns)

    def place(self, times_ns: NDArray[np.int64]) -> Iterator[tuple[OpenWindow, Selection]]:
        """The windows of a batch whose rows are of these times, at least one, and which rows are whose.

        What is late counts in the oldest window that is open.
        """
        for index, selected in self._by_window(times_ns):
            window = self._open.setdefault(index, OpenWindow(first_ns=int(times_ns[0])))
            window.first_ns = min(window.first_ns, int(times_ns[selected].min()))
            window.last_ns = max(window.last_ns, int(times_ns[selected].max()))
            yield window, selected

    def open_at_end(self) -> None:
        """Open an empty window where the capture ends."""
        index = max(self._closed_before, self._index(self._last_ns))
        self._open[index] = OpenWindow(first_ns=self._last_ns)

    def close_until(self, time_ns: int) -> tuple[int, list[tuple[Window, OpenWindow]]]:
        """How many windows end until `time_ns`, and those of them that hold something, oldest first."""
        self.note(time_ns)
        if self._window_ns is None:
            return 0, []
        index = self._index(time_ns)
        count = max(index - self._closed_before, 0)
        return count, self._close_before(index)

    def close_all(self) -> list[tuple[Window, OpenWindow]]:
        """All that are open, oldest first."""
        return self._close_before(max(self._open, default=-1) + 1)

    def _close_before(self, index: int) -> list[tuple[Window, OpenWindow]]:
        self._closed_before = max(self._closed_before, index)
        closing = sorted(i for i in self._open if i < index)
        return [(self._unix_window(i), self._open.pop(i)) for i in closing]

    def _by_window(self, times_ns: NDArray[np.int64]) -> Iterator[tuple[int, Selection]]:
        everything = slice(None)
        if self._window_ns is None or self._start is None:
            yield 0, everything
            return
        first, last = self._index(int(times_ns.min())), self._index(int(times_ns.max()))
        if self._closed_before <= first == last:
            yield first, everything
            return
        indexes = (times_ns - self._start.time_ns) // self._window_ns
        late = indexes < self._closed_before
        if late.any():
            self._ledger.remarks["late for their window"] += int(late.sum())
            indexes = np.maximum(indexes, self._closed_before)
        for index in np.unique(indexes).tolist():
            yield index, indexes == index

    def _index(self, time_ns: int) -> int:
        if self._start is None or self._window_ns is None:
            return 0
        return (time_ns - self._start.time_ns) // self._window_ns

    def _unix_window(self, index: int) -> Window:
        """Bounds in unix time; a capture without a start event, or one window, has the bounds of its events."""
        start, window_ns = self._start, self._window_ns
        if start is not None and window_ns is not None:
            begin_ns = start.time_ns + index * window_ns + start.unix_offset_ns
            return Window(begin_ns, begin_ns + window_ns)
        window = self._open[index]
        offset_ns = start.unix_offset_ns if start else 0
        begin_ns = start.time_ns if start else window.first_ns
        end_ns = max(self._last_ns, window.last_ns + 1, begin_ns + 1)
        return Window(begin_ns + offset_ns, end_ns + offset_ns)
