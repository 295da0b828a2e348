"""The capture file of a recording, which may end before the recording does: a full disk, a pipe that nobody reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import BinaryIO

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.records import Event

logger = logging.getLogger(__name__)


class EventFile:
    """Events go to a sink until it fails. That is logged and kept as `error`; nothing raises."""

    def __init__(self, sink: BinaryIO, attributes: Mapping[str, str]) -> None:
        """Write the header. From here on `sink` is closed here."""
        self.error: str | None = None
        """Why not all events are in the file: the first reason."""
        self._sink = sink
        self._writer: CaptureWriter | None = None
        try:
            self._writer = CaptureWriter(sink, created=attributes)
        except (OSError, CaptureFileError) as error:
            self._note(error)

    @property
    def written_bytes(self) -> int:
        """What the sink has taken so far, which a pipe could not say itself; 0 if the header did not fit."""
        return self._writer.written_bytes if self._writer else 0

    def write(self, event: Event) -> None:
        """Write an event, unless the file has ended."""
        if self._writer is None or not self._writer.is_open:
            return
        try:
            self._writer.write(event)
        except (OSError, CaptureFileError) as error:
            self._note(error)

    def close(self) -> None:
        """Write what is pending and close the sink, which may know only then that it has lost something."""
        try:
            if self._writer is not None:
                self._writer.close()
        except (OSError, CaptureFileError) as error:
            self._note(error)
        try:
            self._sink.close()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError | CaptureFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or str(error)
        self.error = self.error or reason
        if self._writer is not None and self._writer.is_open:
            logger.warning("an event is not in the file: %s", reason)
        else:
            logger.warning("the file ends here: %s; tables will have the rest", reason)
