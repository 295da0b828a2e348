"""Events to rows of the capture file's tables, with strings and frames replaced by their
indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_tables import table_dtype
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import Frame, ProcessKey
from otel_gpuflame.events.records import (
    CaptureStart,
    Event,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    Targets,
    Watermark,
)

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """`rows` rows of the table `kind` make the event; `tables` holds them and the rows that they
    refer to.
    """

    kind: Kind
    rows: int
    tables: dict[Kind, NDArray[Any]]


class WriteDictionary:
    """Strings and frames that the file already has since the last reset, and those that are still
    to be written.
    """

    def __init__(self) -> None:
        self._strings = {"": 0}
        self._frames: dict[Frame, int] = {}
        self._new_strings: list[bytes] = []
        self._new_frames: list[NDArray[Any]] = []
        self.string_bytes = 0
        """Bytes of all strings."""
        self.new_bytes = 0
        """Bytes of the rows that `take_new` would return."""

    @property
    def entries(self) -> int:
        """The longer of the two tables: what a writer bounds."""
        return max(len(self._strings), len(self._frames))

    def string(self, text: str) -> int:
        """Index of `text`. Lone surrogates, as in undecodable paths, are kept."""
        index = self._strings.get(text)
        if index is None:
            data = text.encode("utf-8", "surrogatepass")
            index = self._strings[text] = len(self._strings)
            self._new_strings.append(data)
            self.string_bytes += len(data)
            self.new_bytes += len(data) + table_dtype(Kind.STRINGS).itemsize
        return index

    def frame(self, frame: Frame) -> int:
        """Index of `frame`."""
        index = self._frames.get(frame)
        if index is None:
            row = _table(Kind.FRAMES, [self._frame_row(frame)])
            index = self._frames[frame] = len(self._frames)
            self._new_frames.append(row)
            self.new_bytes += row.nbytes
        return index

    def take_new(self) -> dict[Kind, NDArray[Any]]:
        """Rows of what was added since the last call; from here on the file is taken to have
        them.
        """
        sizes = [(len(data),) for data in self._new_strings]
        tables = {
            Kind.STRINGS: _table(Kind.STRINGS, sizes),
            Kind.STRING_BYTES: np.frombuffer(
                b"".join(self._new_strings), table_dtype(Kind.STRING_BYTES)
            ),
            Kind.FRAMES: np.concatenate([_table(Kind.FRAMES, []), *self._new_frames]),
        }
        self._new_strings, self._new_frames, self.new_bytes = [], [], 0
        return tables

    def _frame_row(self, frame: Frame) -> tuple[int, ...]:
        return (
            self.string(frame.kind.value),
            self.string(frame.name),
            self.string(frame.system_name),
            self.string(frame.file),
            frame.line,
            self.string(frame.module),
            self.string(frame.build_id),
            frame.address,
        )


def encode_event(event: Event, dictionary: WriteDictionary) -> EncodedEvent:
    """Rows of any event but `Calls`, which are rows already.

    Raises:
        CaptureFileError: not an event, or a value out of the range of its column
            (`capture_tables`).
    """
    encode = _ENCODERS.get(type(event))
    if encode is None:
        raise CaptureFileError(
            f"{type(event).__name__} is not an event that a capture file can hold"
        )
    try:
        return encode(event, dictionary)
    except (OverflowError, TypeError, ValueError, AttributeError) as error:
        raise CaptureFileError(
            f"{type(event).__name__} holds a value that a capture file cannot: {error}"
        ) from error


def _capture_start(event: CaptureStart, dictionary: WriteDictionary) -> EncodedEvent:
    string = dictionary.string
    attributes = [(string(key), string(text)) for key, text in event.attributes]
    row = (event.time_ns, event.unix_offset_ns, len(attributes))
    return _encoded(Kind.CAPTURE_STARTS, [row], {Kind.START_ATTRIBUTES: attributes})


def _stacks(event: Stacks, dictionary: WriteDictionary) -> EncodedEvent:
    rows = [(*each.key, *_process(each.process), len(each.frames)) for each in event.stacks]
    frames = [(dictionary.frame(frame),) for each in event.stacks for frame in each.frames]
    return _encoded(Kind.STACKS, rows, {Kind.STACK_FRAMES: frames})


def _names(event: Names, dictionary: WriteDictionary) -> EncodedEvent:
    rows = [
        (
            *_process(each.process),
            each.time_ns,
            each.handle,
            dictionary.string(each.name),
            dictionary.string(each.readable),
        )
        for each in event.names
    ]
    return _encoded(Kind.NAMES, rows, {})


def _targets(event: Targets, dictionary: WriteDictionary) -> EncodedEvent:
    rows = [(*_process(each.process), len(each.attributes)) for each in event.targets]
    attributes = [
        _attribute(key, value, dictionary)
        for each in event.targets
        for key, value in each.attributes
    ]
    return _encoded(Kind.TARGETS, rows, {Kind.TARGET_ATTRIBUTES: attributes})


def _attribute(
    key: str, value: str | int, dictionary: WriteDictionary
) -> tuple[int, int, int, int]:
    if isinstance(value, int):
        return dictionary.string(key), 1, 0, value
    return dictionary.string(key), 0, dictionary.string(value), 0


def _counters(event: SourceCounters, dictionary: WriteDictionary) -> EncodedEvent:
    values = [
        (dictionary.string(each.kind), dictionary.string(each.outcome), each.count)
        for each in event.counts
    ]
    return _encoded(Kind.COUNTERS, [(event.time_ns, len(values))], {Kind.COUNTER_VALUES: values})


def _watermark(event: Watermark, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.WATERMARKS, [(event.time_ns,)], {})


def _processes_ended(event: ProcessesEnded, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.PROCESSES_ENDED, [_process(each) for each in event.processes], {})


def _stacks_forgotten(event: StacksForgotten, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.STACKS_FORGOTTEN, [tuple(key) for key in event.keys], {})


def _sampling_window(event: SamplingWindow, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.SAMPLING_WINDOWS, [astuple(event)], {})


def _executions(event: Executions, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _as_it_is(Kind.EXECUTIONS, event.rows)


def _device_metrics(event: DeviceMetrics, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _as_it_is(Kind.DEVICE_METRICS, event.rows)


def _device_errors(event: DeviceErrors, dictionary: WriteDictionary) -> EncodedEvent:
    string = dictionary.string
    rows = [
        (each.time_ns, each.device, string(each.bus_id), each.code, string(each.message))
        for each in event.errors
    ]
    return _encoded(Kind.DEVICE_ERRORS, rows, {})


def _as_it_is(kind: Kind, rows: NDArray[Any]) -> EncodedEvent:
    """Rows that are in the form of their table already."""
    if rows.ndim != 1 or rows.dtype != table_dtype(kind):
        raise ValueError(f"rows of {rows.dtype} and shape {rows.shape} are none of {kind.name}")
    return EncodedEvent(kind, len(rows), {kind: rows.copy()})


def _devices(event: Devices, dictionary: WriteDictionary) -> EncodedEvent:
    string = dictionary.string
    rows = [
        (
            each.index,
            string(each.uuid),
            string(each.model),
            each.multiprocessors,
            each.threads_per_multiprocessor,
            each.blocks_per_multiprocessor,
            each.registers_per_multiprocessor,
            each.shared_bytes_per_multiprocessor,
        )
        for each in event.devices
    ]
    return _encoded(Kind.DEVICES, rows, {})


def _executions_begin(event: ExecutionsBegin, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.EXECUTIONS_BEGIN, [(*_process(event.process), event.time_ns)], {})


def _executions_end(event: ExecutionsEnd, dictionary: WriteDictionary) -> EncodedEvent:
    row = (*_process(event.process), event.time_ns, dictionary.string(event.incomplete))
    return _encoded(Kind.EXECUTIONS_END, [row], {})


def _execution_watermark(event: ExecutionWatermark, dictionary: WriteDictionary) -> EncodedEvent:
    del dictionary
    return _encoded(Kind.EXECUTION_WATERMARKS, [(*_process(event.process), event.time_ns)], {})


_ENCODERS: Mapping[type, Callable[[Any, WriteDictionary], EncodedEvent]] = MappingProxyType(
    {
        CaptureStart: _capture_start,
        Stacks: _stacks,
        Names: _names,
        Targets: _targets,
        SourceCounters: _counters,
        Watermark: _watermark,
        ProcessesEnded: _processes_ended,
        SamplingWindow: _sampling_window,
        StacksForgotten: _stacks_forgotten,
        Executions: _executions,
        Devices: _devices,
        ExecutionsBegin: _executions_begin,
        ExecutionsEnd: _executions_end,
        ExecutionWatermark: _execution_watermark,
        DeviceMetrics: _device_metrics,
        DeviceErrors: _device_errors,
    }
)


def _encoded(kind: Kind, rows: Rows, children: dict[Kind, Rows]) -> EncodedEvent:
    tables = {kind: _table(kind, rows)}
    tables.update({child: _table(child, each) for child, each in children.items()})
    return EncodedEvent(kind, len(rows), tables)


def _process(process: ProcessKey) -> tuple[int, int]:
    return process.tgid, process.start_ns


def _table(kind: Kind, rows: Rows) -> NDArray[Any]:
    """Rows as an array. numpy rounds floats in silence, and before 2.0 wraps large integers."""
    table = np.array(rows, dtype=table_dtype(kind))
    if table.tolist() != rows:
        raise ValueError(f"a value does not fit {table.dtype}")
    return table
