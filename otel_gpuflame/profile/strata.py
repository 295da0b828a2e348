"""Strata of sampled calls: which calls count, and by how much they are scaled."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.sampling import Estimate, estimate_total
from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.records import CallArray, SamplingWindow
from otel_gpuflame.events.wire import Kind

PPB = 1_000_000_000
_HISTORY = 32
"""Strata from which the standard error is computed: enough for it to be stable, few enough to follow the load."""


def is_windowed(api: apis.Api) -> bool:
    """Whether the agent probes this call only in windows: what returns at once, but for graph launches, which are rare."""
    return api.blocking is Blocking.NEVER and api.kind is not Kind.GRAPH_LAUNCH


_WINDOWED = np.zeros(1 << 16, bool)
_WINDOWED[[api.id for api in apis.ALL if is_windowed(api)]] = True


@dataclass(slots=True)
class Stratum:
    """Calls of one sampling window."""

    window: SamplingWindow
    parts: list[Groups] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """What one seen call stands for."""
        return PPB / self.window.probability_ppb


class Strata:
    """The current stratum, and how far the totals of the last ones differed."""

    def __init__(self) -> None:
        self.current: Stratum | None = None
        self._seen: deque[float] = deque(maxlen=_HISTORY)
        self._probabilities: deque[float] = deque(maxlen=_HISTORY)

    def open(self, window: SamplingWindow) -> Stratum | None:
        """Begin a stratum; returns the one before, if it was not closed by a watermark."""
        before, self.current = self.current, Stratum(window)
        return before

    def windowed(self, rows: CallArray) -> NDArray[np.bool_]:
        """Calls that are only seen in windows, unless everything is captured at present."""
        if self.current is not None and self.current.window.probability_ppb == PPB:
            return np.zeros(len(rows), bool)
        mask: NDArray[np.bool_] = _WINDOWED[rows["api"]]
        return mask

    def inside(self, rows: CallArray) -> NDArray[np.bool_]:
        """Calls within the current window: what comes while probes are attached or detached does not count."""
        if self.current is None:
            return np.zeros(len(rows), bool)
        window = self.current.window
        starts = rows["start_ns"]
        mask: NDArray[np.bool_] = (starts >= window.open_ns) & (starts < window.close_ns)
        return mask

    def close_before(self, time_ns: int) -> Stratum | None:
        """The current stratum if it ended by `time_ns`."""
        current = self.current
        if current is None or time_ns < current.window.stratum_end_ns:
            return None
        self.current = None
        return current

    def note_total(self, stratum: Stratum, submissions: int) -> Estimate:
        """Remember what a stratum's window saw; the estimate over the strata remembered."""
        self._seen.append(float(submissions))
        self._probabilities.append(stratum.window.probability_ppb / PPB)
        return estimate_total(self._seen, self._probabilities)
