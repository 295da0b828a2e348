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
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_reader import CaptureReader, read_capture
from otel_gpuflame.events.capture_schema import conform
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetrics
from otel_gpuflame.events.executions import EXECUTION, Executions
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
        self.impossible: Counter[str] = Counter()
        """Rows left out so far, since the capture cannot have their times, by kind of event."""

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
        if isinstance(event, Calls):
            dtype = self._call_dtype
            return Calls(
                self._possible(event.rows if dtype is None else self._conform(event.rows, dtype))
            )
        if isinstance(event, Executions):
            return Executions(self._possible(event.rows))
        if isinstance(event, DeviceMetrics):
            return DeviceMetrics(self._possible(event.rows))
        if isinstance(event, CaptureStart) and self._shift_to_unix_ns is not None:
            return replace(event, unix_offset_ns=self._shift_to_unix_ns - event.time_ns)
        return event

    def _possible(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Without rows of times that the capture cannot have, which are counted."""
        possible = self._opened().times.possible(rows)
        if possible.all():
            return rows
        self.impossible.update(_kinds(rows.take(np.flatnonzero(~possible))))
        return rows.take(np.flatnonzero(possible))

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


def _kinds(rows: NDArray[Any]) -> list[str]:
    """Lower-case names as in counters of a source: of each call its own, `execution`, `device_metric`."""
    if rows.dtype == EXECUTION:
        return ["execution"] * len(rows)
    if rows.dtype == DEVICE_METRIC:
        return ["device_metric"] * len(rows)
    known = {int(kind): kind.name.lower() for kind in wire.Kind}
    return [known.get(kind, "call") for kind in rows["kind"].tolist()]
