"""What of a program was in sight, where launches are captured in windows."""

from __future__ import annotations

from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import SamplingWindow


class Seen:
    """Since when launches have been seen without a gap. Without windows: always."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._until_ns = 0

    def note(self, window: SamplingWindow) -> None:
        """A window has opened."""
        if window.open_ns > self._until_ns:
            self._since_ns = window.open_ns
        self._until_ns = max(self._until_ns, window.close_ns)

    def from_start(self, process: ProcessKey) -> bool:
        """Whether the process began after that, so that it has given its devices nothing out of sight."""
        return process.start_ns >= self._since_ns
