"""Which calls the agent captures in windows, for whole arrays of them."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import AttributionArray
from otel_gpuflame.events.records import CallArray, SamplingWindow
from otel_gpuflame.events.wire import Kind

_IDS: Final = 1 << 16
_KEPT: Final = 32
"""Stretches of time; strata follow each other without a gap, so one is as long as such calls stay frequent."""
_WINDOWED: Final = np.zeros(_IDS, np.bool_)
_WINDOWED[[api.id for api in apis.ALL if apis.is_windowed(api)]] = True
_MAY_WAIT: Final = np.zeros(_IDS, np.bool_)
_MAY_WAIT[[api.id for api in apis.ALL if api.blocking is not apis.Blocking.NEVER]] = True
_LAUNCHES_GRAPH: Final = np.zeros(_IDS, np.bool_)
_LAUNCHES_GRAPH[[api.id for api in apis.ALL if api.kind is Kind.GRAPH_LAUNCH]] = True


def are_windowed(rows: CallArray) -> NDArray[np.bool_]:
    """Calls that are captured in windows only (`apis.is_windowed`)."""
    found: NDArray[np.bool_] = _WINDOWED[rows["api"]]
    return found


def may_wait(rows: CallArray | AttributionArray) -> NDArray[np.bool_]:
    """Calls that may block, or what is about such: captured in windows only where `SamplingWindow.with_waits`."""
    found: NDArray[np.bool_] = _MAY_WAIT[rows["api"]]
    return found


def launch_graphs(rows: CallArray) -> NDArray[np.bool_]:
    """Launches of graphs: captured in windows only where `SamplingWindow.with_graph_launches`."""
    found: NDArray[np.bool_] = _LAUNCHES_GRAPH[rows["api"]]
    return found


class WindowedWhereFrequent:
    """When calls that are captured always as long as they are rare were captured in windows only.

    Also for those that come when their stratum is over, as waits do that end then.
    """

    def __init__(self) -> None:
        self._waits = _Stretches()
        self._graph_launches = _Stretches()

    def note(self, window: SamplingWindow) -> None:
        """A stratum has begun. In their order."""
        if window.with_waits:
            self._waits.add(window)
        if window.with_graph_launches:
            self._graph_launches.add(window)

    def among(self, rows: CallArray) -> NDArray[np.bool_]:
        """Those that began in such a time."""
        waits = self._waits.cover(rows) & may_wait(rows)
        return waits | (self._graph_launches.cover(rows) & launch_graphs(rows))


class _Stretches:
    """Strata that follow each other are one."""

    def __init__(self) -> None:
        self._stretches_ns: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def add(self, window: SamplingWindow) -> None:
        begin_ns = window.stratum_start_ns
        if self._stretches_ns and self._stretches_ns[-1][1] == begin_ns:
            begin_ns, _ = self._stretches_ns.pop()
        self._stretches_ns.append((begin_ns, window.stratum_end_ns))

    def cover(self, rows: CallArray) -> NDArray[np.bool_]:
        """Calls that began in one."""
        found = np.zeros(len(rows), np.bool_)
        if self._stretches_ns:
            starts_ns = rows["start_ns"]
            for begin_ns, end_ns in self._stretches_ns:
                found |= (starts_ns >= begin_ns) & (starts_ns < end_ns)
        return found
