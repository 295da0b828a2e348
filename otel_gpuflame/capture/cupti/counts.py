"""Counts of one region as the source's: what became of each record, and what some of them lack.

Of kind `execution`: seen = sent + malformed + outside_window + what the library could not write + what is on its way.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

from otel_gpuflame.events.wire_gpu import LibraryCounter

Counts: TypeAlias = Counter[tuple[str, str]]
"""By kind and outcome, as in `LossCount`."""

SEEN: Final = ("execution", "seen")
SENT: Final = ("execution", "sent")
MALFORMED: Final = ("execution", "malformed")
"""Records of no known kind."""
OUTSIDE_WINDOW: Final = ("execution", "outside_window")
"""Records of a window that an earlier exporter had opened."""
BAD_REFERENCE: Final = ("execution_reference", "malformed")
"""Devices and names of records that are not there: they are unknown."""
WRONG_CLOCK: Final = ("execution_time", "wrong_clock")
"""Records with times of another client's clock: they have none."""
MALFORMED_READ: Final = ("region", "malformed")
"""Reads that found something malformed."""

_LIBRARY: Final = {
    LibraryCounter.RING_FULL: ("execution", "ring_full"),
    LibraryCounter.CUPTI_DROPPED: ("execution", "cupti_dropped"),
    LibraryCounter.UNKNOWN_KIND: ("execution", "unknown_kind"),
    LibraryCounter.NAMES_FULL: ("execution_name", "table_full"),
    LibraryCounter.NO_TIME: ("execution_time", "missing"),
    LibraryCounter.BUFFERS: ("activity_buffer", "seen"),
    LibraryCounter.NO_BUFFER: ("activity_buffer", "refused"),
    LibraryCounter.STOOD_DOWN: ("execution_window", "stood_down"),
}
_UNWRITTEN: Final = (
    LibraryCounter.RING_FULL,
    LibraryCounter.CUPTI_DROPPED,
    LibraryCounter.UNKNOWN_KIND,
)
_MAX: Final = (1 << 48) - 1
"""No honest counter comes near it, and sums over processes stay in range."""


class LibraryTotals:
    """The library's counters since `first`, which was read when the region was opened."""

    def __init__(self, first: list[int]) -> None:
        self._first = first
        self._latest = [0] * len(first)

    def take(self, values: list[int]) -> None:
        """The counters now. One that goes back is not believed."""
        for index, (value, first) in enumerate(zip(values, self._first, strict=True)):
            self._latest[index] = max(self._latest[index], min(value - first, _MAX))

    def counts(self) -> Counts:
        """As counts of the source."""
        counts: Counts = Counter(
            {name: self._latest[counter] for counter, name in _LIBRARY.items()}
        )
        unwritten = sum(self._latest[counter] for counter in _UNWRITTEN)
        counts[SEEN] = self._latest[LibraryCounter.WRITTEN] + unwritten
        return counts
