"""Which times a capture can have. Later stages count on it: sums fit into 63 bits, unix times are not negative."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.records import CaptureStart

_MAX_SPAN_NS: Final = 1 << 57
"""Four and a half years: from the boot of the host to the start of a capture, and from there to its end."""
_MAX_UNIX_NS: Final = 1 << 62
"""The year 2116."""


class CaptureTimes:
    """The times of one capture, which begins with its start."""

    def __init__(self) -> None:
        self._start: CaptureStart | None = None

    def begin(self, start: CaptureStart) -> None:
        """Take in the start; raises CaptureFileError."""
        if not 0 <= start.time_ns <= _MAX_SPAN_NS:
            raise CaptureFileError(
                f"expected a start within {_MAX_SPAN_NS} ns of the boot, found {start.time_ns}"
            )
        unix_ns = start.time_ns + start.unix_offset_ns
        if not 0 <= unix_ns < _MAX_UNIX_NS:
            raise CaptureFileError(f"expected a start between 1970 and 2116, found {unix_ns} ns")
        self._start = start

    @property
    def last_ns(self) -> int:
        """No time is later."""
        return _MAX_SPAN_NS if self._start is None else self._start.time_ns + _MAX_SPAN_NS

    def require(self, *times_ns: int) -> None:
        """Raises CaptureFileError for a time that the capture cannot have."""
        for time_ns in times_ns:
            if not 0 <= time_ns <= self.last_ns:
                raise CaptureFileError(
                    f"expected times from 0 to {self.last_ns} ns, found {time_ns}"
                )

    def require_unix(self, *times_ns: int) -> None:
        """As `require`, for times that become unix times though they may lie before the start."""
        self.require(*times_ns)
        offset_ns = 0 if self._start is None else self._start.unix_offset_ns
        if any(time_ns + offset_ns < 0 for time_ns in times_ns):
            raise CaptureFileError("expected times after 1970")

    def possible(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        """(n,) which rows have only times that the capture can have."""
        found = np.ones(len(rows), np.bool_)
        for name in ("start_ns", "end_ns", "time_ns"):
            if name in (rows.dtype.names or ()):
                found &= rows[name] <= np.uint64(self.last_ns)
        return found
