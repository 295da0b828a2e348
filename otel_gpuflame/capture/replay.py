"""A capture file as a source of events: opens the path, and can move the recording to another time
of day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.capture_reader import CaptureReader, read_capture
from otel_gpuflame.events.capture_schema import conform
from otel_gpuflame.events.records import CallArray, Calls, CaptureStart, Event


class ReplaySource:
    """Context manager over one capture file.

    Args:
        path: the `.ogfcap` file.
        shift_to_unix_ns: unix time in ns at which the recording shall appear to have started. Only
            `unix_offset_ns` of `CaptureStart` changes, so that everything computed from monotonic
            times stays identical. None: as recorded.
        call_dtype: deliver calls in this dtype (`capture_schema.conform`). None: in the dtype of
            the file.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        shift_to_unix_ns: int | None = None,
        call_dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._path = path
        self._shift_to_unix_ns = shift_to_unix_ns
        self._call_dtype = call_dtype
        self._file: BinaryIO | None = None
        self._reader: CaptureReader | None = None

    def __enter__(self) -> ReplaySource:
        """Open the file and check its header; raises CaptureFileError."""
        try:
            self._file = open(self._path, "rb")
            self._reader = read_capture(self._file)
        except OSError as error:
            self._close()
            raise CaptureFileError(f"cannot read {self._path}: {error.strerror}") from error
        except CaptureFileError as error:
            self._close()
            raise CaptureFileError(f"{self._path}: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file; `damage` and the counters stay readable."""
        self._close()

    @property
    def created(self) -> dict[str, str]:
        """What the recording says about its origin."""
        return self._opened().created

    @property
    def damage(self) -> str | None:
        """What ended the replay early, with path and offset; meaningful once `events` is
        exhausted.
        """
        damage = self._opened().damage
        return damage and f"{self._path}: {damage}"

    @property
    def skipped_blocks(self) -> Counter[int]:
        """Blocks of kinds that this version does not know, by kind."""
        return self._opened().skipped_blocks

    @property
    def bytes_read(self) -> int:
        """Bytes of the file read so far."""
        return self._opened().bytes_read

    def events(self) -> Iterator[Event]:
        """The events of the recording, once, in the order and the batches in which they were
        recorded.

        Raises:
            CaptureFileError: the file cannot be read any further (I/O error), or its calls do not
                fit `call_dtype`.
        """
        try:
            for event in self._opened():
                yield self._adapt(event)
        except OSError as error:
            raise CaptureFileError(f"cannot read {self._path}: {error.strerror}") from error

    def _adapt(self, event: Event) -> Event:
        if isinstance(event, Calls) and self._call_dtype is not None:
            return Calls(self._conform(event.rows, self._call_dtype))
        if isinstance(event, CaptureStart) and self._shift_to_unix_ns is not None:
            return replace(event, unix_offset_ns=self._shift_to_unix_ns - event.time_ns)
        return event

    def _conform(self, rows: CallArray, dtype: np.dtype[Any]) -> CallArray:
        try:
            return conform(rows, dtype)
        except CaptureFileError as error:
            raise CaptureFileError(f"{self._path}: {error}") from error

    def _opened(self) -> CaptureReader:
        if self._reader is None:
            raise CaptureFileError(f"{self._path} is not open: use the replay as a context manager")
        return self._reader

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
