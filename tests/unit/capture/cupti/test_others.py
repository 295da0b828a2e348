"""What a library is told of other clients of CUPTI, and people too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.cupti.clients import FLUSHED_NS, UNSEEN_NS
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_NAME
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire_gpu import LibraryState
from tests.unit.capture.cupti.writer import Writer, target

WORKER, OTHER = 0x7000, 0x7200
KERNEL = 10
BEGINS = ("cuptiActivityRegisterCallbacks", "cuptiActivityEnable")
ENDS = ("cuptiActivityDisable", "cuptiActivityFlushAll")


@contextmanager
def reading(writer: Writer) -> Iterator[GpuSource]:
    """A source that has the process record."""
    source = GpuSource(str)
    try:
        now_ns = time.monotonic_ns()
        source.know(writer.key)
        source.begin(now_ns)
        source.look([writer.pid], now_ns)
        yield source
    finally:
        source.close(time.monotonic_ns())


def calls(writer: Writer, names: tuple[str, ...], now_ns: int, thread: int = OTHER) -> CallArray:
    """Calls of CUPTI that a thread makes."""
    rows = np.zeros(len(names), wire.CALL)
    rows["tgid"], rows["thread_pointer"], rows["object"] = writer.pid, thread, KERNEL
    rows["kind"], rows["start_ns"] = wire.Kind.CUPTI, now_ns
    rows["api"] = [BY_NAME[name].id for name in names]
    return rows


def told(writer: Writer) -> tuple[int, int, int]:
    """What the control page says: others begun, others ended, the window's generation."""
    names = ("others_begun", "others_ended", "generation")
    begun, ended, generation = (int(writer.control[name][0]) for name in names)
    return begun, ended, generation


def test_the_library_makes_way_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Each time; what people are told, they are told once."""
    now_ns = time.monotonic_ns()
    with target() as writer, reading(writer) as source:
        for run in (1, 2):
            source.observe(calls(writer, BEGINS, now_ns))
            source.step(now_ns)
            assert told(writer) == (run, run - 1, run)
            source.observe(calls(writer, ENDS, now_ns))
            source.step(now_ns)
            assert told(writer) == (run, run - 1, run)
            now_ns += FLUSHED_NS
            source.step(now_ns)
            assert told(writer) == (run, run, run + 1)
            assert writer.control["lease_until_ns"][0] > now_ns
    (message,) = caplog.messages
    assert f"process {writer.pid}: no GPU times while another profiler" in message


def test_the_librarys_own_calls_are_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    """It says which thread is its own."""
    now_ns = time.monotonic_ns()
    with target() as writer, reading(writer) as source:
        writer.library["worker_thread"] = WORKER
        source.observe(calls(writer, BEGINS, now_ns, WORKER))
        source.step(now_ns)
        assert told(writer) == (0, 0, 1)
    assert caplog.messages == []


def test_what_the_library_sees_itself_is_believed_for_a_minute() -> None:
    """No call of the other one was seen."""
    now_ns = time.monotonic_ns()
    with target() as writer, reading(writer) as source:
        writer.library["generation"] = writer.control["generation"]
        writer.library["state"] = LibraryState.STANDING_DOWN
        source.step(now_ns)
        assert told(writer) == (1, 0, 1)
        source.step(now_ns + UNSEEN_NS - 1)
        assert told(writer) == (1, 0, 1)
        source.step(now_ns + UNSEEN_NS)
        assert told(writer) == (1, 1, 2)
        # Of the generation before: the library has not looked yet.
        source.step(now_ns + UNSEEN_NS)
        assert told(writer) == (1, 1, 2)


def test_nothing_is_asked_for_after_the_end_of_the_recording() -> None:
    """The library still hears that it may switch off what it has left on."""
    now_ns = time.monotonic_ns()
    with target() as writer, reading(writer) as source:
        source.observe(calls(writer, BEGINS, now_ns))
        source.step(now_ns)
        source.finish()
        source.observe(calls(writer, ENDS, now_ns))
        wakes = int(writer.control["wake"][0])
        source.step(now_ns + FLUSHED_NS)
        assert told(writer) == (1, 1, 1)
        assert writer.control["lease_until_ns"][0] == 0
        assert writer.control["wake"][0] > wakes


@pytest.mark.parametrize("before", [(5, 4), (4, 4), (0, 0xFFFFFFFF)])
def test_what_an_earlier_exporter_said_is_taken_back(before: tuple[int, int]) -> None:
    """It may have ended while somebody was at work: that nobody knows any more is no permission either."""
    now_ns = time.monotonic_ns()
    with target() as writer:
        writer.control["others_begun"], writer.control["others_ended"] = before
        with reading(writer) as source:
            assert told(writer)[:2] == (before[1], before[1])
            source.observe(calls(writer, BEGINS, now_ns))
            source.step(now_ns)
            following = (before[1] + 1) & 0xFFFFFFFF
            assert told(writer)[:2] == (following, before[1])


def test_calls_from_before_the_region_was_found_count() -> None:
    """A profiler may begin while the recorder is busy."""
    now_ns = time.monotonic_ns()
    with target(is_made=False) as writer, reading(writer) as source:
        source.observe(calls(writer, BEGINS, now_ns))
        source.step(now_ns)
        writer.make()
        due_ns = source.next_look_ns()
        assert due_ns is not None
        source.look([writer.pid], due_ns)
        source.step(due_ns)
        assert told(writer)[:2] == (1, 0)


@pytest.mark.parametrize("how", ["exec", "exit"])
def test_calls_of_a_program_that_is_gone_do_not_count(how: str) -> None:
    """Its pid may mean another one."""
    with target(is_made=False) as writer, reading(writer) as source:
        # After the first look: the next one is due soon after that.
        now_ns = time.monotonic_ns()
        source.observe(calls(writer, BEGINS, now_ns))
        if how == "exec":
            source.follow(
                ProcessChange(
                    change=wire.ProcessChange.EXEC,
                    process=writer.key,
                    parent=writer.key,
                    comm="",
                    time_ns=now_ns,
                    maps_gpu_library=False,
                ),
                now_ns,
            )
        else:
            source.forget(writer.key)
        writer.make()
        later_ns = now_ns + FLUSHED_NS
        source.look([writer.pid], later_ns)
        source.step(later_ns)
        assert told(writer) == (0, 0, 1)
