"""Strata of sampled calls: which calls count, and by how much they are scaled."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.sampling import Estimate, estimate_total
from otel_gpuflame.events.attributions import AttributionArray, Measure
from otel_gpuflame.events.records import CallArray, SamplingWindow
from otel_gpuflame.events.windowed import WindowedWhereFrequent, are_windowed, may_wait
from otel_gpuflame.profile.linked_spans import LinkedSpans

PPB = 1_000_000_000
HISTORY = 32
"""Strata from which the standard error is computed: enough for it to be stable, few enough to follow the load."""
_LATE_NS = 1_000_000_000
"""A thread that loses the CPU between taking the time and sending the call delivers so late, on a host that is busy."""


@dataclass(slots=True)
class Stratum:
    """Calls of one sampling window."""

    window: SamplingWindow
    number: int
    parts: list[Groups] = field(default_factory=list)
    waits: list[Groups] = field(default_factory=list)
    """What its waits waited for (groups of `attribution_columns`)."""
    spans: LinkedSpans = field(default_factory=LinkedSpans)

    @property
    def scale(self) -> float:
        """What one seen call stands for."""
        return PPB / self.window.probability_ppb

    @property
    def is_whole(self) -> bool:
        """Captured all the time: its calls count as they are."""
        return self.window.probability_ppb == PPB

    @property
    def over_ns(self) -> int:
        """When no call of it is expected any more. Late ones of a whole stratum can still be told from the next's."""
        return self.window.stratum_end_ns + (_LATE_NS if self.is_whole else 0)


class Strata:
    """Strata that are not complete yet, and how far the totals of the last ones differed.

    Two at most in practice: calls of the last window may still come when the next one has opened.
    """

    def __init__(self) -> None:
        self._open: list[Stratum] = []
        self._where_frequent = WindowedWhereFrequent()
        self.opened = 0
        self._seen: deque[float] = deque(maxlen=HISTORY)
        self._probabilities: deque[float] = deque(maxlen=HISTORY)

    @property
    def oldest(self) -> int:
        """The first that keeps its calls to itself until it is complete, or the next one."""
        open_ones = (each.number for each in self._open if not each.is_whole)
        return min(open_ones, default=self.opened + 1)

    def open(self, window: SamplingWindow) -> None:
        """Begin a stratum."""
        self.opened += 1
        self._open.append(Stratum(window, self.opened))
        self._where_frequent.note(window)

    def split(
        self, rows: CallArray
    ) -> tuple[CallArray, list[tuple[Stratum, CallArray]], CallArray]:
        """(calls that count as they are, calls by stratum, windowed calls outside of every window).

        In a stratum that is captured as a whole, windowed calls count as they are too. A wait that ends when its
        stratum is complete is outside: the estimate of that stratum stands for it.
        """
        undecided = are_windowed(rows) | self._where_frequent.among(rows)
        starts = rows["start_ns"]
        exact = ~undecided
        sampled = []
        for stratum in self._open:
            window = stratum.window
            inside = undecided & (starts >= window.open_ns) & (starts < window.close_ns)
            undecided &= ~inside
            if stratum.is_whole:
                exact |= inside
            elif inside.any():
                sampled.append((stratum, rows[inside]))
        return rows[exact], sampled, rows[undecided]

    def split_waits(
        self, rows: AttributionArray
    ) -> tuple[AttributionArray, list[tuple[Stratum, AttributionArray]]]:
        """(all others, what windowed waits waited for by stratum).

        A wait outside of a window is left out here, as the call is in `split`, where it is counted.
        """
        waits = (rows["measure"] == Measure.GPU_WAIT) & (rows["sampled_ns"] > 0) & may_wait(rows)
        if not waits.any():
            return rows, []
        at_ns = rows["sampled_ns"]
        found = []
        for stratum in self._open:
            window = stratum.window
            inside = waits & (at_ns >= window.open_ns) & (at_ns < window.close_ns)
            if inside.any():
                found.append((stratum, rows.take(np.flatnonzero(inside))))
        return rows.take(np.flatnonzero(~waits)), found

    def complete_until(self, time_ns: int) -> list[Stratum]:
        """Remove and return the strata that are over by `time_ns`, oldest first."""
        complete = [s for s in self._open if s.over_ns <= time_ns]
        self._open = [s for s in self._open if s.over_ns > time_ns]
        return complete

    def note_total(self, stratum: Stratum, submissions: int) -> Estimate:
        """Remember what a stratum's window saw; the estimate over the strata remembered."""
        self._seen.append(float(submissions))
        self._probabilities.append(stratum.window.probability_ppb / PPB)
        return estimate_total(self._seen, self._probabilities)
