"""Which calls of a process are captured into graphs: between begin and end, on the stream and on those that join it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.events import apis
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

_BEGINS: Final = frozenset(
    apis.BY_NAME[name].id for name in ("cuStreamBeginCapture", "cuStreamBeginCaptureToGraph")
)
_END: Final = apis.BY_NAME["cuStreamEndCapture"].id
_STREAM_WAITED, _CONTEXT_WAITED = (
    apis.BY_NAME[name].id for name in ("cuStreamSynchronize", "cuCtxSynchronize")
)
_CAPTURE_APIS: Final = np.array([*sorted(_BEGINS), _END], np.uint16)
_WAITS: Final = np.array([_STREAM_WAITED, _CONTEXT_WAITED], np.uint16)
_PER_THREAD: Final = 2
"""Handles up to this one mean another stream in each thread."""


@dataclass(slots=True)
class _Capture:
    """One that goes on. Streams join it by waiting for an event of one that is in it."""

    thread: int
    streams: set[tuple[int, int]]
    events: set[int] = field(default_factory=set)
    parts: list[CallArray] = field(default_factory=list)


@dataclass(slots=True)
class Captures:
    """Those of one process. `failed`: captures that turned out to be none."""

    failed: int = 0
    _open: dict[tuple[int, int], _Capture] = field(default_factory=dict)
    """By the stream on which it began."""

    @property
    def is_open(self) -> bool:
        """Whether one goes on."""
        return bool(self._open)

    def follow(self, rows: CallArray) -> tuple[NDArray[np.bool_], list[CallArray]]:
        """(n,) which of the process's calls are captured, and what the captures hold that have ended.

        Begins and ends take effect in the order of time.
        """
        starts_ns = rows["start_ns"]
        order = np.arange(len(rows))
        if not (starts_ns[1:] >= starts_ns[:-1]).all():
            order = np.argsort(starts_ns, kind="stable")
            rows = rows.take(order)
        is_turn = np.isin(rows["api"], _CAPTURE_APIS) | np.isin(rows["api"], _WAITS)
        is_turn |= np.isin(rows["kind"], (Kind.EVENT_RECORD, Kind.STREAM_WAIT))
        captured = np.zeros(len(rows), np.bool_)
        ended: list[CallArray] = []
        begin = 0
        for place in (*np.flatnonzero(is_turn).tolist(), len(rows)):
            for capture in self._open.values():
                inside = begin + np.flatnonzero(_is_in(capture, rows[begin:place]))
                if len(inside):
                    captured[inside] = True
                    capture.parts.append(rows.take(inside))
            if place < len(rows):
                ended += self._turn(rows[place])
            begin = place + 1
        result = np.zeros(len(rows), np.bool_)
        result[order] = captured
        return result, ended

    def _turn(self, row: np.void) -> list[CallArray]:
        """What this call changes; the calls of the capture that it ends."""
        stream, api = _stream(int(row["stream"]), int(row["thread_pointer"])), int(row["api"])
        if api in _BEGINS:
            # One that failed, or whose end was not seen, ends with the next one on that stream.
            self._open[stream] = _Capture(int(row["thread_pointer"]), {stream})
        elif api == _END:
            capture = self._open.pop(stream, None)
            if capture is not None and capture.parts:
                return [np.concatenate(capture.parts)]
        elif api in (_STREAM_WAITED, _CONTEXT_WAITED):
            self._wait(row, stream)
        elif row["kind"] == Kind.EVENT_RECORD:
            for capture in self._open.values():
                if stream in capture.streams:
                    capture.events.add(int(row["object"]))
        else:
            for capture in self._open.values():
                if int(row["object"]) in capture.events:
                    capture.streams.add(stream)
        return []

    def _wait(self, row: np.void, stream: tuple[int, int]) -> None:
        """Nobody can wait for a stream that is captured: the capture had not begun, or is invalid now."""
        of_context = int(row["api"]) == _CONTEXT_WAITED
        for begun_on, capture in tuple(self._open.items()):
            is_own = capture.thread == int(row["thread_pointer"])
            if (of_context and is_own) or (not of_context and stream in capture.streams):
                del self._open[begun_on]
                self.failed += 1


def begins_or_ends(rows: CallArray) -> NDArray[np.intp]:
    """Places of calls that begin or end a capture."""
    return np.flatnonzero(np.isin(rows["api"], _CAPTURE_APIS))


def _stream(handle: int, thread: int) -> tuple[int, int]:
    return handle, thread if handle <= _PER_THREAD else 0


def _is_in(capture: _Capture, rows: CallArray) -> NDArray[np.bool_]:
    """Which calls give a captured stream something to do."""
    streams = rows["stream"]
    found = np.isin(streams, [handle for handle, thread in capture.streams if not thread])
    for handle, thread in capture.streams:
        if thread:
            found |= (streams == handle) & (rows["thread_pointer"] == thread)
    chosen: NDArray[np.bool_] = found & IS_SUBMISSION[rows["kind"]]
    return chosen
