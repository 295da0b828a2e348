"""The GPU side of honest targets: what they write arrives as events, whole and in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pytest

from otel_gpuflame.capture import host_devices
from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events import wire, wire_gpu
from otel_gpuflame.events.executions import (
    EXECUTION,
    NO_DEVICE,
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
    name_handle,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event, Names
from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete, LibraryCounter, LibraryState
from tests.unit.capture.cupti.writer import SLOTS, Writer, kernels, target

UUIDS = (bytes(range(16)), bytes(range(16, 32)))
T = TypeVar("T")


@contextmanager
def reading(*writers: Writer) -> Iterator[GpuSource]:
    """A source that has found the regions and has them record."""
    source = GpuSource(str.upper)
    try:
        now_ns = time.monotonic_ns()
        for writer in writers:
            source.know(writer.key)
        source.begin(now_ns)
        source.look([writer.pid for writer in writers], now_ns)
        yield source
    finally:
        source.close(time.monotonic_ns())


def step(source: GpuSource) -> list[Event]:
    """One round, now."""
    return source.step(time.monotonic_ns())


def of(events: list[Event], kind: type[T]) -> list[T]:
    """The events of one type."""
    return [event for event in events if isinstance(event, kind)]


def rows(events: list[Event]) -> np.ndarray[Any, Any]:
    """All executions."""
    return np.concatenate([np.empty(0, EXECUTION), *(e.rows for e in of(events, Executions))])


def counts(source: GpuSource) -> dict[str, int]:
    """The source's totals."""
    return {f"{count.kind}.{count.outcome}": count.count for count in source.counters()}


def test_every_column_arrives() -> None:
    """A row is its record, with the process, the host's device and a handle for its name."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        device = writer.add_device(UUIDS[0], b"NVIDIA H200")
        name = writer.add_name(b"_Z3addv")
        sent = kernels(3, device=device, name=name, grid=(1, 2, 3), block=(4, 5, 6))
        for index, column in enumerate(("thread_pointer", "graph_node_id", "bytes")):
            sent[column] = (1 << 60) + index
        for index, column in enumerate(
            ("context_id", "stream_id", "graph_id", "shared_bytes", "registers_per_thread")
        ):
            sent[column] = 100 + index
        writer.write(sent)
        found = rows(step(source))
    assert found.dtype == EXECUTION
    for column in set(wire_gpu.RECORD.names or ()) - {"device", "name", "_pad"}:
        assert np.array_equal(found[column], sent[column]), column
    assert set(found["device"]) == {0}
    assert set(found["name"]) == {name_handle(name - 1)}
    assert set(found["tgid"]) == {writer.pid}
    assert set(found["process_start_ns"]) == {writer.key.start_ns}


def test_events_come_in_the_order_in_which_they_are_needed() -> None:
    """Devices and names before rows that use them, a window's begin before its rows, its end after them."""
    with target() as writer, reading(writer) as source:
        begin_ns = writer.open_window()
        device = writer.add_device(UUIDS[0], b"NVIDIA H200")
        writer.write(kernels(2, device=device, name=writer.add_name(b"kernel")))
        end_ns = writer.close_window()
        events = step(source)
    assert [type(event) for event in events] == [
        *(Devices, Names, ExecutionsBegin, Executions, ExecutionsEnd)
    ]
    assert of(events, ExecutionsBegin) == [ExecutionsBegin(writer.key, begin_ns)]
    assert of(events, ExecutionsEnd) == [ExecutionsEnd(writer.key, end_ns)]


def test_a_ring_that_wraps_many_times_loses_and_repeats_nothing() -> None:
    """Each record arrives once, in order, whatever the fill when it is read."""
    sizes = [SLOTS - 1, 1, SLOTS, 7, 0, SLOTS // 2 + 3, SLOTS, 13]
    found, next_id = [], 1
    with target() as writer, reading(writer) as source:
        writer.open_window()
        step(source)
        for size in sizes:
            writer.write(kernels(size, correlation_id=np.arange(next_id, next_id + size)))
            next_id += size
            found += rows(step(source))["correlation_id"].tolist()
            assert writer.control["records_tail"][0] == writer.library["records_head"][0]
    assert found == list(range(1, next_id))


def test_names_are_given_once_with_their_readable_form() -> None:
    """A name comes with the first read after it was written, and long ones are not merged."""
    long = b"k" * 300
    with target() as writer, reading(writer) as source:
        writer.open_window()
        first = writer.add_name(b"abc")
        writer.write(kernels(1, name=first))
        events = step(source)
        second, third = writer.add_name(long + b"1"), writer.add_name(long + b"2")
        writer.write(kernels(3, name=[first, second, third]))
        later = step(source)
    (names,) = of(events, Names)
    (name,) = names.names
    assert (name.process, name.handle) == (writer.key, name_handle(first - 1))
    assert (name.name, name.readable) == ("abc", "ABC")
    (names,) = of(later, Names)
    assert [each.name for each in names.names] == [(long + b"1").decode(), (long + b"2").decode()]
    assert len({each.readable for each in names.names}) == 2
    handles = [name_handle(each - 1) for each in (first, second, third)]
    assert rows(later)["name"].tolist() == handles


def test_a_device_has_one_number_on_the_whole_host() -> None:
    """Two processes that name their devices in another order mean the same by the same number."""
    with target() as one, target() as other, reading(one, other) as source:
        events: list[Event] = []
        for writer, uuids in ((one, UUIDS), (other, UUIDS[::-1])):
            writer.open_window()
            places = [writer.add_device(uuid, b"NVIDIA H200") for uuid in uuids]
            writer.write(kernels(2, device=places))
            events += step(source)
    devices = [device for event in of(events, Devices) for device in event.devices]
    assert [device.index for device in devices] == [0, 1]
    assert devices[0].uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (devices[0].model, devices[0].multiprocessors) == ("NVIDIA H200", 132)
    found = rows(events)
    assert found["device"][found["tgid"] == one.pid].tolist() == [0, 1]
    assert found["device"][found["tgid"] == other.pid].tolist() == [1, 0]


def test_devices_without_uuids_are_forgotten_with_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is room for those of the next one, under a number that no other has had."""
    monkeypatch.setattr(host_devices, "_MAX_DEVICES", 1)
    with target() as one, target() as other, reading(one, other) as source:
        for writer in (one, other):
            writer.open_window()
            place = writer.add_device(bytes(16), b"some OpenCL device")
            writer.write(kernels(1, device=place))
            assert rows(step(source))["device"].tolist() == [[0], [1]][writer is other]
            source.look([other.pid], time.monotonic_ns())


def test_a_record_without_a_device_has_none() -> None:
    """Launches and synchronisations belong to no device that is known."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(1, kind=GpuKind.API))
        assert rows(step(source))["device"].tolist() == [NO_DEVICE]
        assert "region.malformed" not in counts(source)


def test_the_watermark_never_goes_back_nor_into_the_future() -> None:
    """It is what the library promises, as far as that can be true."""
    with target() as writer, reading(writer) as source:
        begin_ns = writer.open_window()
        marks = []
        for complete_ns in (begin_ns, begin_ns - 10**9, begin_ns + 1, (1 << 64) - 1):
            writer.library["complete_ns"] = complete_ns
            marks += [mark.time_ns for mark in of(step(source), ExecutionWatermark)]
        last_ns = time.monotonic_ns()
    assert marks[:2] == [begin_ns, begin_ns + 1]
    assert begin_ns + 1 < marks[2] <= last_ns
    assert len(marks) == 3


@pytest.mark.parametrize("incomplete", list(Incomplete))
def test_the_end_says_why_something_is_missing(incomplete: Incomplete) -> None:
    """In words that captures keep; nothing where all is there."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.close_window(incomplete)
        (end,) = of(step(source), ExecutionsEnd)
    expected = "" if incomplete is Incomplete.COMPLETE else incomplete.name.lower()
    assert end.incomplete == expected


def test_a_process_that_dies_in_a_window_is_read_to_its_end() -> None:
    """What it has written still arrives, then the window ends, marked."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(5))
        key = writer.key
        writer.kill()
        source.look([], time.monotonic_ns())
        events = step(source)
        assert len(rows(events)) == 5
        assert events.index(of(events, ExecutionsEnd)[0]) == len(events) - 1
        (end,) = of(events, ExecutionsEnd)
        assert (end.process, end.incomplete) == (key, "process_ended")
        assert step(source) == []
        assert counts(source)["execution.sent"] == 6


def test_a_process_that_closes_its_window_and_ends_is_complete() -> None:
    """As a program does that ends by itself: the library flushes at exit."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(5))
        writer.close_window()
        writer.library["state"] = LibraryState.ENDED
        writer.kill()
        source.look([], time.monotonic_ns())
        events = step(source)
    assert len(rows(events)) == 5
    assert [end.incomplete for end in of(events, ExecutionsEnd)] == [""]


def test_a_program_that_is_replaced_gets_a_new_search() -> None:
    """After exec the old region is read to its end, and let go."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(2))
        change = ProcessChange(
            wire.ProcessChange.EXEC, writer.key, ProcessKey(1, 1), time.monotonic_ns(), "python3"
        )
        source.follow(change, time.monotonic_ns())
        events = step(source)
        assert len(rows(events)) == 2
        assert [end.incomplete for end in of(events, ExecutionsEnd)] == ["process_ended"]
        # Here the region is still there, so it is found again.
        source.look([writer.pid], time.monotonic_ns())
        writer.open_window()
        assert len(of(step(source), ExecutionsBegin)) == 1


def test_records_wait_until_the_process_is_known() -> None:
    """Their process must be the one that the probes' calls have, whose exact begin comes with the first call."""
    source = GpuSource(str.upper)
    with target() as writer:
        now_ns = time.monotonic_ns()
        source.begin(now_ns)
        source.look([writer.pid], now_ns)
        writer.open_window()
        writer.write(kernels(3))
        assert step(source) == []
        source.know(writer.key)
        events = step(source)
        source.close(time.monotonic_ns())
    assert set(rows(events)["process_start_ns"]) == {writer.key.start_ns}
    assert len(rows(events)) == 3


def test_records_of_a_process_that_stays_unknown_are_not_lost() -> None:
    """When the ring is half full they come all the same."""
    source = GpuSource(str.upper)
    with target() as writer:
        now_ns = time.monotonic_ns()
        source.begin(now_ns)
        source.look([writer.pid], now_ns)
        writer.open_window()
        writer.write(kernels(SLOTS // 2))
        events = step(source)
        source.close(time.monotonic_ns())
    assert len(rows(events)) == SLOTS // 2


def test_a_pid_that_means_another_process_ends_the_former() -> None:
    """Its end was not reported: what it wrote is its own, not its successor's."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(2))
        former = writer.key
        source.know(former)
        assert of(step(source), ExecutionsEnd) == []
        source.know(ProcessKey(former.tgid, former.start_ns + 10**9))
        (end,) = of(step(source), ExecutionsEnd)
    assert (end.process, end.incomplete) == (former, "process_ended")


def test_times_of_another_clock_are_none() -> None:
    """Where another client of CUPTI has set its clock, times mean nothing; without a time is not wrong."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        sent = kernels(4)
        sent["start_ns"][1], sent["end_ns"][1] = time.time_ns(), time.time_ns() + 5
        sent["start_ns"][2], sent["end_ns"][2] = 0, 0
        sent["end_ns"][3] = sent["start_ns"][3] - 1
        writer.write(sent)
        found = rows(step(source))
        assert counts(source)["execution_time.wrong_clock"] == 1
        assert "region.malformed" not in counts(source)
    assert found["start_ns"].tolist() == [sent["start_ns"][0], 0, 0, sent["start_ns"][3]]
    assert found["end_ns"].tolist() == [sent["end_ns"][0], 0, 0, sent["end_ns"][3]]


def test_what_an_earlier_exporter_left_is_not_delivered() -> None:
    """Records before our lease, and the rest of a window of somebody else's."""
    with target() as writer:
        writer.control["generation"] = writer.control["wake"] = 1
        writer.open_window()
        writer.write(kernels(3))
        with reading(writer) as source:
            writer.write(kernels(2))
            writer.close_window()
            assert step(source) == []
            writer.open_window()
            writer.write(kernels(1))
            assert len(rows(step(source))) == 1
            assert counts(source)["execution.outside_window"] == 2


def test_a_library_that_is_not_ready_is_waited_for() -> None:
    """Calls of CUPTI must be seen before it is given a lease, and it may have loaded no CUPTI yet."""
    prepared: list[int] = []
    with target() as writer:
        source = GpuSource(str, prepare=prepared.append)
        writer.library["state"] = LibraryState.STARTING
        now_ns = time.monotonic_ns()
        source.begin(now_ns)
        source.look([writer.pid], now_ns)
        assert (prepared, int(writer.control["lease_until_ns"][0])) == ([], 0)
        writer.library["state"] = LibraryState.DORMANT
        due_ns = source.next_look_ns()
        assert due_ns is not None
        source.look([writer.pid], due_ns)
        assert prepared == [writer.pid]
        assert writer.control["lease_until_ns"][0] > 0
        source.close(time.monotonic_ns())


def test_a_window_that_the_library_opened_by_itself_is_carried_on() -> None:
    """From its first record, and the books hold all of it."""
    with target() as writer:
        writer.open_window()
        writer.write(kernels(3))
        writer.library["counters"][0][LibraryCounter.WRITTEN] = 4
        with reading(writer) as source:
            events = step(source)
            assert counts(source)["execution.seen"] == counts(source)["execution.sent"] == 4
            assert writer.control["records_tail"][0] == 4
            assert writer.control["lease_until_ns"][0] > 0
            writer.write(kernels(2))
            writer.close_window()
            events += step(source)
    assert len(of(events, ExecutionsBegin)) == len(of(events, ExecutionsEnd)) == 1
    assert len(rows(events)) == 5


@pytest.mark.parametrize("is_later", [True, False])
def test_a_window_that_ended_by_itself_is_ours_if_it_began_after_us(is_later: bool) -> None:
    """A recorder that was busy for longer than the library waits has it all the same; an older one is not news."""
    with target() as writer:
        source = GpuSource(str)
        now_ns = time.monotonic_ns()
        source.begin(now_ns if is_later else now_ns + (1 << 60))
        source.know(writer.key)
        writer.open_window()
        writer.write(kernels(3))
        writer.close_window()
        source.look([writer.pid], now_ns)
        events = step(source)
        source.close(time.monotonic_ns())
    assert len(rows(events)) == (3 if is_later else 0)
    assert len(of(events, ExecutionsEnd)) == is_later


def test_a_head_beyond_the_ring_is_not_believed() -> None:
    """Nobody has read, and the ring cannot hold so many: what is in it is no record of the beginning."""
    with target() as writer:
        writer.open_window()
        writer.library["records_head"] = SLOTS + 1
        with reading(writer) as source:
            assert rows(step(source)).size == 0
            assert writer.control["records_tail"][0] == SLOTS + 1


def test_an_end_that_found_no_room_is_noticed() -> None:
    """The ring was full when the window closed: the state says so once everything is read."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(5))
        assert of(step(source), ExecutionsEnd) == []
        writer.library["state"] = LibraryState.DORMANT
        (end,) = of(step(source), ExecutionsEnd)
    assert end.incomplete == "ring_full"


def test_the_librarys_counters_are_summed_over_processes_and_survive_them() -> None:
    """Totals of the living and of the dead; a counter that goes back is not believed."""
    with target() as one, target() as other, reading(one, other) as source:
        one.library["counters"][0][LibraryCounter.NO_BUFFER] = 3
        other.library["counters"][0][LibraryCounter.NO_BUFFER] = 4
        assert counts(source)["activity_buffer.refused"] == 7
        one.kill()
        source.look([other.pid], time.monotonic_ns())
        other.library["counters"][0][LibraryCounter.NO_BUFFER] = 1
        assert counts(source)["activity_buffer.refused"] == 7


def test_a_program_without_a_region_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    """It never called cuInit, or was started without the library: nothing is said."""
    with target(name="something_else") as writer, reading(writer) as source:
        assert step(source) == []
        assert counts(source) == {}
        assert source.next_look_ns() is not None
    assert caplog.messages == []


def test_a_region_that_comes_later_is_found() -> None:
    """The library makes it when the program calls cuInit."""
    with target(is_made=False) as writer, reading(writer) as source:
        assert step(source) == []
        writer.make()
        due_ns = source.next_look_ns()
        assert due_ns is not None
        source.look([writer.pid], due_ns)
        assert writer.control["generation"][0] == 1


def test_a_target_that_cannot_record_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the error, CUPTI's result and the remedy; the open window ends."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.library["error"], writer.library["cupti_result"] = 3, 35
        writer.library["state"] = LibraryState.UNUSABLE
        events = step(source) + step(source)
    assert [end.incomplete for end in of(events, ExecutionsEnd)] == ["refused"]
    (message,) = caplog.messages
    assert f"process {writer.pid}: no GPU times: CUPTI_ERROR" in message
    assert "35, INSUFFICIENT_PRIVILEGES" in message
    assert "NVreg_RestrictProfilingToAdminUsers=0" in message


def test_processes_that_are_gone_are_no_trouble() -> None:
    """Pids come from outside, and may mean nothing any more."""
    source = GpuSource(str.upper)
    source.begin(1)
    source.look([2, 2**22 + 1], time.monotonic_ns())
    assert step(source) == []
    assert source.is_idle


def test_the_books_of_records_are_closed() -> None:
    """Seen is sent, dropped for a reason, or on its way."""
    with target() as writer:
        writer.control["generation"] = writer.control["wake"] = 1
        writer.open_window()
        writer.write(kernels(9))
        written = writer.library["counters"][0]
        written[LibraryCounter.WRITTEN] = 10
        with reading(writer) as source:
            writer.write(kernels(2))
            writer.close_window()
            writer.open_window()
            writer.write(kernels(5, kind=[GpuKind.KERNEL, GpuKind.API, 0, GpuKind.COPY, 99]))
            writer.close_window()
            written[LibraryCounter.WRITTEN] += 10
            written[LibraryCounter.RING_FULL] += 4
            step(source)
            writer.write(kernels(3))
            written[LibraryCounter.WRITTEN] += 3
            found = counts(source)
    assert found == {
        "execution.seen": 17,
        "execution.sent": 6,
        "execution.ring_full": 4,
        "execution.malformed": 2,
        "execution.outside_window": 2,
        "region.malformed": 1,
    }


@pytest.mark.parametrize("yields", [True, False])
def test_a_program_that_a_recorder_has_started_is_left_to_it(yields: bool) -> None:
    """By whoever captures the whole host: one exporter at a time reads a region. Others are read all the same."""
    with target(variables={"OTEL_GPUFLAME_INJECT_START": "1"}) as recorded, target() as other:
        agent = GpuSource(str, yields=yields)
        now_ns = time.monotonic_ns()
        agent.begin(now_ns)
        agent.look([recorded.pid, other.pid], now_ns)
        assert int(recorded.control["generation"][0]) == (0 if yields else 1)
        assert int(other.control["generation"][0]) == 1
        agent.close(time.monotonic_ns())
