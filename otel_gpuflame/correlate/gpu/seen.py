"""What of a program was in sight, where launches are captured in windows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, SamplingWindow
from otel_gpuflame.events.windowed import WindowedWhereFrequent


class Seen:
    """Since when launches have been seen without a gap. Without windows: always."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._until_ns = 0
        self._where_frequent = WindowedWhereFrequent()

    def note(self, window: SamplingWindow) -> None:
        """A window has opened."""
        self._where_frequent.note(window)
        if window.open_ns > self._until_ns:
            self._since_ns = window.open_ns
        self._until_ns = max(self._until_ns, window.close_ns)

    def sampled_waits(self, waits: CallArray) -> NDArray[np.bool_]:
        """Which of these waits are seen because they began in a window."""
        return self._where_frequent.among(waits)

    def from_start(self, process: ProcessKey) -> bool:
        """Whether the process began after that, so that it has given its devices nothing out of sight."""
        return process.start_ns >= self._since_ns
