"""Processes with two of our libraries, the one of CUDA and the layer of OpenCL: two regions, one interval."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events.executions import (
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.records import Event, Names
from otel_gpuflame.events.wire_gpu import Incomplete
from tests.unit.capture.cupti.test_source import of, reading, rows, step
from tests.unit.capture.cupti.writer import Writer, kernels, target

LOOKS_NS = 3_000_000_000
"""Within which a process is looked at again."""


@pytest.fixture
def cuda() -> Iterator[Writer]:
    """The first region of a process; its `others` has the second."""
    with target(regions=2) as writer:
        yield writer


def edges(events: list[Event]) -> list[Event]:
    """Begins and ends."""
    return [event for event in events if isinstance(event, ExecutionsBegin | ExecutionsEnd)]


def second_of(source: GpuSource, cuda: Writer) -> Writer:
    """The other region, once it is read too: a process is looked at again for it."""
    (opencl,) = cuda.others
    source.look([cuda.pid], time.monotonic_ns() + LOOKS_NS)
    assert int(opencl.control["lease_until_ns"][0]) > 0
    return opencl


def test_both_are_read(cuda: Writer) -> None:
    """What either library has written arrives, with ids and names that are not the other's."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        sent = []
        for writer, name in ((cuda, b"of_cuda"), (opencl, b"of_opencl")):
            writer.open_window()
            kernel = writer.add_name(name)
            sent.append(kernels(3, name=kernel, context_id=1, stream_id=7))
            writer.write(sent[-1])
        events = step(source)
        found = rows(events)
        names = {each.handle: each.name for event in of(events, Names) for each in event.names}
    assert [names[handle] for handle in found["name"].tolist()] == ["of_cuda"] * 3 + [
        "of_opencl"
    ] * 3
    assert len(np.unique(found["correlation_id"])) == 6
    assert len(np.unique(found["context_id"])) == 2
    assert (found["correlation_id"] & np.uint32(0x7FFFFFFF)).tolist() == [1, 2, 3, 1, 2, 3]
    assert set(found["process_start_ns"].tolist()) == {cuda.key.start_ns}


def test_one_interval_is_told(cuda: Writer) -> None:
    """It begins with the first that records, for the other had not been used; and ends when one of them ends."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        begin_ns = cuda.open_window()
        opencl.open_window()
        assert edges(step(source)) == [ExecutionsBegin(cuda.key, begin_ns)]
        end_ns = opencl.close_window(Incomplete.NOT_TIMED)
        cuda.write(kernels(2))
        events = step(source)
        assert edges(events) == [ExecutionsEnd(cuda.key, end_ns, "not_timed")]
        assert len(rows(events)) == 2
        cuda.close_window()
        assert edges(step(source)) == []


def test_the_next_interval_begins_when_both_record_again(cuda: Writer) -> None:
    """Before, something may have been given to a device that nobody has seen."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        for writer in (cuda, opencl):
            writer.open_window()
        step(source)
        for writer in (cuda, opencl):
            writer.close_window()
        assert len(edges(step(source))) == 1
        cuda.open_window()
        assert edges(step(source)) == []
        begin_ns = opencl.open_window()
        assert edges(step(source)) == [ExecutionsBegin(cuda.key, begin_ns)]


def test_complete_is_what_both_have_written(cuda: Writer) -> None:
    """The watermark is that of the one that is behind."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        for writer in (cuda, opencl):
            writer.open_window()
        step(source)
        now_ns = time.monotonic_ns()
        cuda.library["complete_ns"] = now_ns
        assert of(step(source), ExecutionWatermark) == []
        opencl.library["complete_ns"] = now_ns - 1000
        assert of(step(source), ExecutionWatermark) == [ExecutionWatermark(cuda.key, now_ns - 1000)]


def test_a_region_that_is_never_used_is_not_waited_for(cuda: Writer) -> None:
    """A program that is given both libraries and uses one of them is told as if it had that one."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        begin_ns = opencl.open_window()
        complete_ns = time.monotonic_ns()
        opencl.library["complete_ns"] = complete_ns
        opencl.write(kernels(1))
        events = step(source)
        assert edges(events) == [ExecutionsBegin(cuda.key, begin_ns)]
        assert of(events, ExecutionWatermark) == [ExecutionWatermark(cuda.key, complete_ns)]
        assert len(of(events, Executions)) == 1


def test_both_end_with_their_process(cuda: Writer) -> None:
    """Leases end, counts stay, and the end is told once."""
    with reading(cuda) as source:
        opencl = second_of(source, cuda)
        for writer in (cuda, opencl):
            writer.open_window()
            writer.write(kernels(2))
        events = step(source)
        source.look([], time.monotonic_ns())
        events += step(source)
        counts = {(each.kind, each.outcome): each.count for each in source.counters()}
    assert [event.incomplete for event in of(events, ExecutionsEnd)] == ["process_ended"]
    assert counts["execution", "sent"] == 2 * (1 + 2)
    assert all(int(each.control["lease_until_ns"][0]) == 0 for each in (cuda, opencl))
