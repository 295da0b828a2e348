"""Rows of the capture file's tables back to events. What the rows claim is checked: the file may be
hostile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.capture_format import (
    MAX_DICTIONARY_BYTES,
    MAX_OBJECT_ROWS,
    Kind,
    kind_name,
)
from otel_gpuflame.events.capture_tables import TABLES, table_dtype
from otel_gpuflame.events.capture_times import CaptureTimes
from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    DeviceInfo,
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import (
    Calls,
    CaptureStart,
    Event,
    HandleName,
    LossCount,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    TargetInfo,
    Targets,
    Watermark,
)

Tables = Mapping[int, NDArray[Any]]

_CERTAIN_PPB = 1_000_000_000


class ReadDictionary:
    """Strings and frames since the last reset, by index."""

    def __init__(self) -> None:
        self.unknown_frame_kinds: Counter[str] = Counter()
        """Frames of kinds that this version does not know; they are delivered as native frames."""
        self.reset()

    def reset(self) -> None:
        """Forget everything; index 0 is always the empty string."""
        self._strings = [""]
        self._frames: list[Frame] = []
        self._string_bytes = 0

    def extend(self, tables: Tables) -> None:
        """Take over the new strings and frames of a segment; raises CaptureFileError."""
        self._add_strings(_rows(tables, Kind.STRINGS), _rows(tables, Kind.STRING_BYTES))
        self._add_frames(_rows(tables, Kind.FRAMES))

    def string(self, index: int) -> str:
        """The string of that index; raises CaptureFileError."""
        if index >= len(self._strings):
            raise CaptureFileError(
                f"expected a string index below {len(self._strings)}, found {index}"
            )
        return self._strings[index]

    def frame(self, index: int) -> Frame:
        """The frame of that index; raises CaptureFileError."""
        if index >= len(self._frames):
            raise CaptureFileError(
                f"expected a frame index below {len(self._frames)}, found {index}"
            )
        return self._frames[index]

    def _add_strings(self, sizes: NDArray[Any], data: NDArray[Any]) -> None:
        ends = np.cumsum(sizes["size_bytes"], dtype=np.uint64).tolist()
        expected_bytes = ends[-1] if ends else 0
        if expected_bytes != len(data):
            raise CaptureFileError(f"expected {expected_bytes} bytes of strings, found {len(data)}")
        self._string_bytes += len(data)
        if (
            self._string_bytes > MAX_DICTIONARY_BYTES
            or len(self._strings) + len(ends) > MAX_OBJECT_ROWS + 1
        ):
            raise CaptureFileError("expected a reset before this many strings")
        blob = data.tobytes()
        try:
            self._strings.extend(
                blob[start:end].decode("utf-8", "surrogatepass")
                for start, end in zip([0, *ends], ends, strict=False)
            )
        except UnicodeDecodeError as error:
            raise CaptureFileError(f"expected strings in UTF-8: {error}") from error

    def _add_frames(self, rows: NDArray[Any]) -> None:
        if len(self._frames) + len(rows) > MAX_OBJECT_ROWS:
            raise CaptureFileError("expected a reset before this many frames")
        for kind, name, system_name, file, line, module, build_id, address in rows.tolist():
            self._frames.append(
                Frame(
                    kind=self._frame_kind(self.string(kind)),
                    name=self.string(name),
                    system_name=self.string(system_name),
                    file=self.string(file),
                    line=line,
                    module=self.string(module),
                    build_id=self.string(build_id),
                    address=address,
                )
            )

    def _frame_kind(self, value: str) -> FrameKind:
        try:
            return FrameKind(value)
        except ValueError:
            self.unknown_frame_kinds[value] += 1
            return FrameKind.NATIVE


class SegmentDecoder:
    """The events of one whole segment."""

    def __init__(self, tables: Tables, dictionary: ReadDictionary, times: CaptureTimes) -> None:
        self._tables = tables
        self._dictionary = dictionary
        self.times = times
        self._taken: Counter[int] = Counter()

    def decode(self) -> tuple[list[Event], Counter[int]]:
        """All events in order, and how many were left out by their unknown kind; raises
        CaptureFileError.
        """
        events: list[Event] = []
        skipped: Counter[int] = Counter()
        for kind, rows in _rows(self._tables, Kind.EVENTS).tolist():
            decode = _DECODERS.get(kind)
            if decode is None:
                skipped[kind] += 1
            else:
                events.append(decode(self, rows))
        self._require_all_taken()
        return events, skipped

    def take(self, kind: Kind, count: int) -> NDArray[Any]:
        """The next `count` rows of a table."""
        table, start = _rows(self._tables, kind), self._taken[kind]
        if start + count > len(table):
            raise CaptureFileError(
                f"events need {start + count} rows of {kind_name(kind)}, found {len(table)}"
            )
        self._taken[kind] += count
        return table[start : start + count]

    def string(self, index: int) -> str:
        """See `ReadDictionary.string`."""
        return self._dictionary.string(index)

    def frame(self, index: int) -> Frame:
        """See `ReadDictionary.frame`."""
        return self._dictionary.frame(index)

    def _require_all_taken(self) -> None:
        for kind, table in self._tables.items():
            if kind not in _DICTIONARY_KINDS and self._taken[kind] != len(table):
                raise CaptureFileError(
                    f"events use {self._taken[kind]} rows of {kind_name(kind)}, found {len(table)}"
                )


def _capture_start(segment: SegmentDecoder, rows: int) -> CaptureStart:
    time_ns, unix_offset_ns, count = _single(segment, Kind.CAPTURE_STARTS, rows)
    pairs = segment.take(Kind.START_ATTRIBUTES, count).tolist()
    attributes = tuple((segment.string(key), segment.string(text)) for key, text in pairs)
    start = CaptureStart(time_ns=time_ns, unix_offset_ns=unix_offset_ns, attributes=attributes)
    segment.times.begin(start)
    return start


def _calls(segment: SegmentDecoder, rows: int) -> Calls:
    return Calls(segment.take(Kind.CALLS, rows))


def _stacks(segment: SegmentDecoder, rows: int) -> Stacks:
    return Stacks(tuple(_stack(segment, row) for row in segment.take(Kind.STACKS, rows).tolist()))


def _stack(segment: SegmentDecoder, row: tuple[int, ...]) -> Stack:
    high, low, tgid, start_ns, count = row
    indices = segment.take(Kind.STACK_FRAMES, count)["frame_id"].tolist()
    frames = tuple(map(segment.frame, indices))
    return Stack(key=StackKey(high, low), process=_process(tgid, start_ns), frames=frames)


def _names(segment: SegmentDecoder, rows: int) -> Names:
    return Names(
        tuple(
            HandleName(
                _process(tgid, start_ns),
                time_ns,
                handle,
                segment.string(name),
                segment.string(readable),
            )
            for tgid, start_ns, time_ns, handle, name, readable in segment.take(
                Kind.NAMES, rows
            ).tolist()
        )
    )


def _targets(segment: SegmentDecoder, rows: int) -> Targets:
    return Targets(
        tuple(_target(segment, *row) for row in segment.take(Kind.TARGETS, rows).tolist())
    )


def _target(segment: SegmentDecoder, tgid: int, start_ns: int, count: int) -> TargetInfo:
    attributes = tuple(
        (segment.string(key), integer if is_integer else segment.string(text))
        for key, is_integer, text, integer in segment.take(Kind.TARGET_ATTRIBUTES, count).tolist()
    )
    return TargetInfo(_process(tgid, start_ns), attributes)


def _counters(segment: SegmentDecoder, rows: int) -> SourceCounters:
    time_ns, count = _single(segment, Kind.COUNTERS, rows)
    segment.times.require(time_ns)
    counts = tuple(
        LossCount(segment.string(kind), segment.string(outcome), value)
        for kind, outcome, value in segment.take(Kind.COUNTER_VALUES, count).tolist()
    )
    return SourceCounters(time_ns, counts)


def _watermark(segment: SegmentDecoder, rows: int) -> Watermark:
    (time_ns,) = _single(segment, Kind.WATERMARKS, rows)
    segment.times.require(time_ns)
    return Watermark(time_ns)


def _processes_ended(segment: SegmentDecoder, rows: int) -> ProcessesEnded:
    table = segment.take(Kind.PROCESSES_ENDED, rows).tolist()
    return ProcessesEnded(tuple(_process(tgid, start_ns) for tgid, start_ns in table))


def _stacks_forgotten(segment: SegmentDecoder, rows: int) -> StacksForgotten:
    table = segment.take(Kind.STACKS_FORGOTTEN, rows).tolist()
    return StacksForgotten(tuple(StackKey(high, low) for high, low in table))


def _sampling_window(segment: SegmentDecoder, rows: int) -> SamplingWindow:
    *times_ns, probability_ppb, with_waits, with_graph_launches = _single(
        segment, Kind.SAMPLING_WINDOWS, rows
    )
    start_ns, end_ns, open_ns, close_ns = times_ns
    segment.times.require_unix(*times_ns)
    if start_ns > end_ns or open_ns > close_ns:
        raise CaptureFileError(f"expected a window that ends after it begins, found {times_ns}")
    if not 0 < probability_ppb <= _CERTAIN_PPB:
        raise CaptureFileError(
            f"expected a probability from 1 to {_CERTAIN_PPB} ppb, found {probability_ppb}"
        )
    return SamplingWindow(
        *(start_ns, end_ns, open_ns, close_ns, probability_ppb),
        with_waits=bool(with_waits),
        with_graph_launches=bool(with_graph_launches),
    )


def _executions(segment: SegmentDecoder, rows: int) -> Executions:
    return Executions(segment.take(Kind.EXECUTIONS, rows))


def _device_metrics(segment: SegmentDecoder, rows: int) -> DeviceMetrics:
    return DeviceMetrics(segment.take(Kind.DEVICE_METRICS, rows))


def _device_errors(segment: SegmentDecoder, rows: int) -> DeviceErrors:
    return DeviceErrors(
        tuple(
            DeviceError(
                time_ns=time_ns,
                device=device,
                bus_id=segment.string(bus_id),
                code=code,
                message=segment.string(message),
            )
            for time_ns, device, bus_id, code, message in segment.take(
                Kind.DEVICE_ERRORS, rows
            ).tolist()
        )
    )


def _devices(segment: SegmentDecoder, rows: int) -> Devices:
    return Devices(
        tuple(
            DeviceInfo(
                index=index,
                uuid=segment.string(uuid),
                model=segment.string(model),
                multiprocessors=multiprocessors,
                threads_per_multiprocessor=threads,
                blocks_per_multiprocessor=blocks,
                registers_per_multiprocessor=registers,
                shared_bytes_per_multiprocessor=shared_bytes,
            )
            for (
                index,
                uuid,
                model,
                multiprocessors,
                threads,
                blocks,
                registers,
                shared_bytes,
            ) in segment.take(Kind.DEVICES, rows).tolist()
        )
    )


def _executions_begin(segment: SegmentDecoder, rows: int) -> ExecutionsBegin:
    tgid, start_ns, time_ns = _single(segment, Kind.EXECUTIONS_BEGIN, rows)
    segment.times.require(time_ns)
    return ExecutionsBegin(_process(tgid, start_ns), time_ns)


def _executions_end(segment: SegmentDecoder, rows: int) -> ExecutionsEnd:
    tgid, start_ns, time_ns, incomplete = _single(segment, Kind.EXECUTIONS_END, rows)
    segment.times.require(time_ns)
    return ExecutionsEnd(_process(tgid, start_ns), time_ns, segment.string(incomplete))


def _execution_watermark(segment: SegmentDecoder, rows: int) -> ExecutionWatermark:
    tgid, start_ns, time_ns = _single(segment, Kind.EXECUTION_WATERMARKS, rows)
    segment.times.require(time_ns)
    return ExecutionWatermark(_process(tgid, start_ns), time_ns)


def _process(tgid: int, start_ns: int) -> ProcessKey:
    if start_ns < 0:
        raise CaptureFileError(
            f"expected a process that started after the boot, found {start_ns} ns"
        )
    return ProcessKey(tgid, start_ns)


def _single(segment: SegmentDecoder, kind: Kind, rows: int) -> tuple[int, ...]:
    if rows != 1:
        raise CaptureFileError(f"expected one row of {kind_name(kind)} an event, found {rows}")
    row: tuple[int, ...] = segment.take(kind, 1).tolist()[0]
    return row


_DECODERS: Mapping[int, Callable[[SegmentDecoder, int], Event]] = MappingProxyType(
    {
        Kind.CAPTURE_STARTS: _capture_start,
        Kind.CALLS: _calls,
        Kind.STACKS: _stacks,
        Kind.NAMES: _names,
        Kind.TARGETS: _targets,
        Kind.COUNTERS: _counters,
        Kind.WATERMARKS: _watermark,
        Kind.PROCESSES_ENDED: _processes_ended,
        Kind.SAMPLING_WINDOWS: _sampling_window,
        Kind.STACKS_FORGOTTEN: _stacks_forgotten,
        Kind.EXECUTIONS: _executions,
        Kind.DEVICES: _devices,
        Kind.EXECUTIONS_BEGIN: _executions_begin,
        Kind.EXECUTIONS_END: _executions_end,
        Kind.EXECUTION_WATERMARKS: _execution_watermark,
        Kind.DEVICE_METRICS: _device_metrics,
        Kind.DEVICE_ERRORS: _device_errors,
    }
)

_DICTIONARY_KINDS = frozenset({Kind.EVENTS, Kind.STRINGS, Kind.STRING_BYTES, Kind.FRAMES})


def _rows(tables: Tables, kind: Kind) -> NDArray[Any]:
    table = tables.get(kind)
    if table is not None:
        return table
    if kind not in TABLES:
        raise CaptureFileError(f"events refer to {kind_name(kind)}, which no schema describes")
    return np.empty(0, dtype=table_dtype(kind))
