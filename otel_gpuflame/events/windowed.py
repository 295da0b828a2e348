"""Which calls the agent captures in windows, for whole arrays of them."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import AttributionArray
from otel_gpuflame.events.records import CallArray, SamplingWindow

_IDS: Final = 1 << 16
_KEPT: Final = 32
"""Stretches of time; strata follow each other without a gap, so one is as long as waits stay frequent."""
_WINDOWED: Final = np.zeros(_IDS, np.bool_)
_WINDOWED[[api.id for api in apis.ALL if apis.is_windowed(api)]] = True
_MAY_WAIT: Final = np.zeros(_IDS, np.bool_)
_MAY_WAIT[[api.id for api in apis.ALL if api.blocking is not apis.Blocking.NEVER]] = True


def are_windowed(rows: CallArray) -> NDArray[np.bool_]:
    """Calls that are captured in windows only (`apis.is_windowed`)."""
    found: NDArray[np.bool_] = _WINDOWED[rows["api"]]
    return found


def may_wait(rows: CallArray | AttributionArray) -> NDArray[np.bool_]:
    """Calls that may block, or what is about such: captured in windows only where `SamplingWindow.with_waits`."""
    found: NDArray[np.bool_] = _MAY_WAIT[rows["api"]]
    return found


class WindowedWaits:
    """When calls that may wait were captured in windows only, also for waits that end when their stratum is over."""

    def __init__(self) -> None:
        self._stretches_ns: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def note(self, window: SamplingWindow) -> None:
        """A stratum has begun. In their order."""
        if not window.with_waits:
            return
        begin_ns = window.stratum_start_ns
        if self._stretches_ns and self._stretches_ns[-1][1] == begin_ns:
            begin_ns, _ = self._stretches_ns.pop()
        self._stretches_ns.append((begin_ns, window.stratum_end_ns))

    def among(self, rows: CallArray) -> NDArray[np.bool_]:
        """Waits that began in such a time."""
        found = np.zeros(len(rows), np.bool_)
        if self._stretches_ns:
            starts_ns = rows["start_ns"]
            for begin_ns, end_ns in self._stretches_ns:
                found |= (starts_ns >= begin_ns) & (starts_ns < end_ns)
            found &= may_wait(rows)
        return found
