"""What is written is what is read: every event, every batch, in order."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import capture_writer, wire
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_reader import _columns, _require_columns, read_capture
from otel_gpuflame.events.capture_schema import describe
from otel_gpuflame.events.capture_tables import TABLES
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    EXECUTION,
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
from tests.unit.events.capture_samples import (
    START,
    assert_same,
    calls,
    capture_bytes,
    device_metrics,
    executions,
    read_all,
    small_recording,
    split,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(["a", "b"])
INTEGER = st.integers(-(2**63), 2**63 - 1)
TIME = st.integers(0, 2**57)
OFFSET = st.integers(0, 2**61)
WORD = st.integers(0, 2**64 - 1)
PROCESSES = st.builds(ProcessKey, st.integers(0, 2**32 - 1), TIME)
FRAMES = st.builds(Frame, st.sampled_from(FrameKind), TEXT, TEXT, TEXT, INTEGER, TEXT, TEXT, WORD)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Short tuples of any length."""
    return st.lists(of, max_size=3).map(tuple)


STACKS = st.builds(Stack, st.builds(StackKey, WORD, WORD), PROCESSES, tuples(FRAMES))
TARGETS = st.builds(TargetInfo, PROCESSES, tuples(st.tuples(TEXT, TEXT | INTEGER)))
NUMBER = st.integers(0, 2**32 - 1)
DEVICES = st.builds(
    DeviceInfo,
    index=NUMBER,
    uuid=TEXT,
    model=TEXT,
    multiprocessors=NUMBER,
    threads_per_multiprocessor=NUMBER,
    blocks_per_multiprocessor=NUMBER,
    registers_per_multiprocessor=NUMBER,
    shared_bytes_per_multiprocessor=NUMBER,
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(CaptureStart, TIME, OFFSET, tuples(st.tuples(TEXT, TEXT))),
    st.builds(lambda n, seed: Calls(calls(n, seed=seed)), st.integers(0, 5), st.integers(0, 9)),
    st.builds(Stacks, tuples(STACKS)),
    st.builds(Names, tuples(st.builds(HandleName, PROCESSES, INTEGER, WORD, TEXT, TEXT))),
    st.builds(Targets, tuples(TARGETS)),
    st.builds(SourceCounters, TIME, tuples(st.builds(LossCount, TEXT, TEXT, INTEGER))),
    st.builds(Watermark, TIME),
    st.builds(ProcessesEnded, tuples(PROCESSES)),
    st.builds(StacksForgotten, tuples(st.builds(StackKey, WORD, WORD))),
    st.builds(
        lambda times, ppb: SamplingWindow(*times, ppb),
        st.tuples(TIME, TIME).map(lambda t: (min(t), max(t), min(t), max(t))),
        st.integers(1, 10**9),
    ),
    st.builds(
        lambda n, seed: Executions(executions(n, seed=seed)), st.integers(0, 5), st.integers(0, 9)
    ),
    st.builds(Devices, tuples(DEVICES)),
    st.builds(ExecutionsBegin, PROCESSES, TIME),
    st.builds(ExecutionsEnd, PROCESSES, TIME, TEXT),
    st.builds(ExecutionWatermark, PROCESSES, TIME),
    st.builds(
        lambda n, seed: DeviceMetrics(device_metrics(n, seed=seed)),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
)


@settings(deadline=None)
@given(events=st.lists(EVENTS, max_size=12), flush_after_ns=st.sampled_from([0, 2**64]))
def test_every_event_comes_back_equal_and_in_order(
    events: list[Event], flush_after_ns: int
) -> None:
    """Any sequence of events is read as it was written, wherever the segments end."""
    found, reader = read_all(capture_bytes(events, flush_after_ns=flush_after_ns))
    assert_same(found, events)
    assert reader.damage is None
    assert not reader.skipped_blocks


def test_same_events_make_the_same_bytes() -> None:
    """A capture holds no time, no random number and no hash order of the run that made it."""
    assert capture_bytes(small_recording()) == capture_bytes(small_recording())


def test_reader_tells_origin_version_and_progress() -> None:
    """What the writer was given as `created` comes back, and all bytes are accounted for."""
    data = capture_bytes(small_recording())
    _, reader = read_all(data)
    assert (reader.created, reader.version) == ({"version": "test"}, (1, 4))
    assert reader.bytes_read == len(data)


def test_strings_and_frames_are_written_once() -> None:
    """A second stack of the same frames adds its row and its indices, no string and no frame."""
    frames = (Frame(FrameKind.PYTHON, "train", file="t.py", line=1),)
    process = ProcessKey(1, 2)
    stacks = [Stacks((Stack(StackKey(n, n), process, frames),)) for n in range(5)]
    events = [each for pair in zip(stacks, map(Watermark, range(5)), strict=True) for each in pair]
    _, blocks = split(capture_bytes(events))
    kinds = [kind for kind, _ in blocks]
    assert kinds.count(Kind.STRINGS) == kinds.count(Kind.FRAMES) == 1
    assert kinds.count(Kind.STACKS) == 5


def test_batches_may_be_reused_by_the_caller() -> None:
    """The writer keeps its own copy, since a drain writes the next batch into the same memory."""
    rows = calls(3)
    expected = [Calls(rows.copy())]
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={})
    writer.write(Calls(rows))
    rows["start_ns"] = 0
    writer.close()
    assert_same(read_all(sink.getvalue())[0], expected)


def test_flushed_events_are_readable_before_close() -> None:
    """After `flush` everything written so far is in the file, which only lacks its end block."""
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={}, flush_after_ns=2**64)
    writer.write(START)
    assert read_all(sink.getvalue())[0] == []
    writer.write(Calls(calls(2)))
    writer.flush()
    found, reader = read_all(sink.getvalue())
    assert_same(found, [START, Calls(calls(2))])
    assert "the recording was cut off" in str(reader.damage)


def test_watermarks_flush_by_event_time() -> None:
    """A watermark ends the segment once `flush_after_ns` of event time has passed, not before."""
    times_ns = [0, 400, 999, 1_000, 1_500, 2_000]
    data = capture_bytes(map(Watermark, times_ns), flush_after_ns=1_000)
    assert [kind for kind, _ in split(data)[1]].count(Kind.EVENTS) == 3
    assert_same(read_all(data)[0], list(map(Watermark, times_ns)))


def test_writer_holds_no_more_than_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any watermark the writer flushes by size, and the batches stay as they were."""
    monkeypatch.setattr(capture_writer, "_FLUSH_BYTES", 10 * wire.CALL.itemsize)
    batches: list[Event] = [Calls(calls(4, seed=n)) for n in range(9)]
    data = capture_bytes(batches)
    assert [kind for kind, _ in split(data)[1]].count(Kind.EVENTS) == 3
    assert_same(read_all(data)[0], batches)


def test_large_tables_span_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch larger than a block is spread over several and comes back as one batch."""
    monkeypatch.setattr(capture_writer, "_BLOCK_BYTES", 10 * wire.CALL.itemsize)
    data = capture_bytes([Calls(calls(25))])
    assert [kind for kind, _ in split(data)[1]].count(Kind.CALLS) == 3
    assert_same(read_all(data)[0], [Calls(calls(25))])


def test_oversized_batches_come_back_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that no segment can hold loses its boundaries, but not a row."""
    monkeypatch.setattr(capture_writer, "_BATCH_BYTES", 10 * wire.CALL.itemsize)
    found, _ = read_all(capture_bytes([Calls(calls(25))]))
    sizes = [len(each.rows) for each in found if isinstance(each, Calls)]
    assert sizes == [10, 10, 5]
    assert b"".join(e.rows.tobytes() for e in found if isinstance(e, Calls)) == calls(25).tobytes()


def test_oversized_batches_of_executions_come_back_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of calls: several processes may have a full ring each."""
    monkeypatch.setattr(capture_writer, "_BATCH_BYTES", 10 * EXECUTION.itemsize)
    found, _ = read_all(capture_bytes([Executions(executions(25)), Executions(executions(0))]))
    parts = [each.rows for each in found if isinstance(each, Executions)]
    assert [len(rows) for rows in parts] == [10, 10, 5, 0]
    assert b"".join(rows.tobytes() for rows in parts) == executions(25).tobytes()


def test_dictionary_is_bounded_by_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording of endlessly new strings starts its dictionary anew, and reads back the same."""
    monkeypatch.setattr(capture_writer, "_DICTIONARY_ENTRIES", 10)
    events: list[Event] = []
    for n in range(20):
        name = HandleName(ProcessKey(1, 2), n, n, f"kernel_{n % 7}_{n}")
        events += [Names((name, name)), Watermark(n)]
    data = capture_bytes(events)
    assert [kind for kind, _ in split(data)[1]].count(Kind.RESET) == 2
    assert_same(read_all(data)[0], events)


@pytest.mark.parametrize(
    "event",
    [
        Watermark(2**63),
        Names((HandleName(ProcessKey(-1, 0), 0, 0, ""),)),
        Names((HandleName(ProcessKey(0, 0), 0, 2**64, ""),)),
        Watermark(1.5),  # type: ignore[arg-type]
        Targets((TargetInfo(ProcessKey(0, 0), (("k", None),)),)),  # type: ignore[arg-type]
        Stacks((Stack(StackKey(0, 0), ProcessKey(0, 0), (Frame(FrameKind.GPU, "", line=2**63),)),)),
        Executions(np.zeros(2, dtype=wire.CALL)),
        Executions(np.zeros((2, 2), dtype=EXECUTION)),
        Devices((DeviceInfo(index=2**32, uuid="", model=""),)),
        ExecutionsEnd(ProcessKey(0, 0), 0, None),  # type: ignore[arg-type]
        "text",
    ],
)
def test_unfit_events_are_refused_and_leave_the_capture_whole(event: Any) -> None:
    """A value that its column cannot hold raises, and the events around it are written."""
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={})
    writer.write(START)
    with pytest.raises(CaptureFileError):
        writer.write(event)
    writer.write(Watermark(7))
    writer.close()
    found, reader = read_all(sink.getvalue())
    assert_same(found, [START, Watermark(7)])
    assert reader.damage is None


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros(2, dtype="<u8"),
        np.zeros(2, dtype=[("a", ">u8")]),
        np.zeros(2, dtype=[("a", "O")]),
        np.zeros((2, 2), dtype=wire.CALL),
    ],
)
def test_arrays_that_are_no_table_are_refused(rows: Any) -> None:
    """Call rows must be one-dimensional, structured, little-endian and free of objects."""
    with pytest.raises(CaptureFileError):
        CaptureWriter(io.BytesIO(), created={}).write(Calls(rows))


def test_event_too_large_for_a_segment_fails_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that readers would refuse is not written, and the file before it stays readable."""
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={}, flush_after_ns=0)
    writer.write(Watermark(1))
    monkeypatch.setattr("otel_gpuflame.events.capture_format.MAX_OBJECT_ROWS", 3)
    names = Names((HandleName(ProcessKey(1, 2), 0, 0, "k"),) * 4)
    writer.write(names)
    with pytest.raises(CaptureFileError, match="too many parts"):
        writer.flush()
    with pytest.raises(CaptureFileError, match="failed"):
        writer.write(Watermark(2))
    writer.close()
    assert_same(read_all(sink.getvalue())[0], [Watermark(1)])


class _Sink:
    """Takes 7 bytes at a time; after `limit` bytes it raises as a full disk does, or takes none."""

    def __init__(self, limit: int = 1 << 30, *, raises: bool = True) -> None:
        self.data = b""
        self._limit = limit
        self._raises = raises

    def write(self, data: memoryview, /) -> int:
        if len(self.data) >= self._limit:
            if self._raises:
                raise OSError(28, "No space left on device")
            return 0
        self.data += bytes(data[:7])
        return min(len(data), 7)


def test_short_writes_are_continued() -> None:
    """A sink that takes less than it is given still gets every byte."""
    sink = _Sink()
    writer = CaptureWriter(sink, created={"version": "test"}, flush_after_ns=0)
    for event in small_recording():
        writer.write(event)
    writer.close()
    assert sink.data == capture_bytes(small_recording())


@pytest.mark.parametrize("raises", [True, False])
def test_full_disk_fails_the_writer_and_keeps_what_is_written(raises: bool) -> None:
    """After an error of the sink nothing is appended: the segments before it stay readable."""
    size = len(capture_bytes([]))
    sink = _Sink(size + 100, raises=raises)
    writer = CaptureWriter(sink, created={"version": "test"}, flush_after_ns=0)
    writer.write(Watermark(1))
    writer.write(Calls(calls(100)))
    with pytest.raises(OSError if raises else CaptureFileError):
        writer.flush()
    written = sink.data
    with pytest.raises(CaptureFileError, match="failed"):
        writer.write(Watermark(2))
    writer.close()
    assert sink.data == written
    found, reader = read_all(written)
    assert_same(found, [Watermark(1)])
    assert reader.damage is not None


def test_closed_writer_refuses_events_and_closes_twice() -> None:
    """Closing again does nothing; writing after it is an error that says so."""
    sink = io.BytesIO()
    writer = CaptureWriter(sink, created={})
    writer.close()
    size = len(sink.getvalue())
    writer.close()
    assert len(sink.getvalue()) == size
    with pytest.raises(CaptureFileError, match="closed"):
        writer.write(Watermark(1))


def test_oversized_header_is_refused() -> None:
    """`created` has to fit into the header that a reader accepts."""
    with pytest.raises(CaptureFileError, match="fewer or shorter"):
        CaptureWriter(io.BytesIO(), created={"k": "x" * (1 << 20)})


class _Pipe(io.BytesIO):
    """Gives at most 5 bytes a read, as a slow pipe does."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(5, size if size is not None and size >= 0 else 5))


def test_reader_takes_pipes() -> None:
    """Short reads are continued: the stream need not be a file."""
    reader = read_capture(_Pipe(capture_bytes(small_recording())))
    assert_same(list(reader), small_recording())
    assert reader.damage is None


def test_a_column_that_came_later_is_0_in_older_files() -> None:
    """Windows of captures before 1.3 do not say whether they hold waits: none did. Launches of graphs: before 1.4."""
    columns = TABLES[Kind.SAMPLING_WINDOWS].dtype
    assert columns.names is not None
    numbers = (1, 5, 2, 3, 9, 1, 1)
    for kept in (5, 6):
        older = np.dtype([(name, columns[name]) for name in columns.names[:kept]])
        _require_columns(Kind.SAMPLING_WINDOWS, describe("sampling_windows", older))
        (row,) = _columns(Kind.SAMPLING_WINDOWS, [np.array([numbers[:kept]], older)])
        assert row.tolist() == numbers[:kept] + (0,) * (7 - kept)
    with pytest.raises(CaptureFileError, match="close_ns"):
        _require_columns(
            Kind.SAMPLING_WINDOWS,
            describe(
                "sampling_windows", np.dtype([(name, columns[name]) for name in columns.names[:3]])
            ),
        )
