# SPDX-License-Identifier: Apache-2.0
"""`record` with the GPU side: what the injected library writes is in the file, beside the calls that probes saw."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from otel_gpuflame.capture.cupti.inject import LIBRARY, VARIABLE
from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import (
    EXECUTION,
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
)
from otel_gpuflame.events.records import Calls, Event, Names, ProcessesEnded, SourceCounters
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryCounter, LibraryState
from tests.integration.bpf.recording import record, record_command
from tests.integration.bpf.session import Running, attached, running
from tests.integration.inject.region import NoRegionError, Region, wait_for
from tests.integration.inject.session import HERE, environment
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]

TARGET = [sys.executable, str(HERE / "target_app.py")]
LOW_WORD = np.uint64(0xFFFFFFFF)
T = TypeVar("T")


class Program:
    """The target program, told what to do through the pipes of whoever started it."""

    def __init__(self, started: Running) -> None:
        self._running = started
        self._answers = 0
        self.pid = int(self._answer()["pid"])

    @property
    def recorder(self) -> Running:
        """Whoever started it."""
        return self._running

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; its answer."""
        assert self._running.process.stdin is not None
        self._running.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._running.process.stdin.flush()
        return self._answer()

    def wait_until_captured(self) -> None:
        """Until the library records, and a lease has been given: it may have begun without one."""
        self._running.wait_for(lambda: is_capturing(self.pid, leased=True), "a window")

    def finish_work(self, records: int) -> None:
        """Have the device end its work, and wait until so many records of it are written.

        The library leaves a program half a second to end, which a busy machine may not be enough for.
        """
        self.do("synchronize")
        region = Region(self.pid)
        written = LibraryCounter.WRITTEN
        self._running.wait_for(lambda: region.counter(written) >= records, "the records")

    def end(self) -> None:
        """Let it end by itself."""
        assert self._running.process.stdin is not None
        self._running.process.stdin.close()

    def _answer(self) -> dict[str, Any]:
        self._answers += 1
        self._running.wait_for(
            lambda: self._running.stdout.text().count("\n") >= self._answers, "an answer"
        )
        line = self._running.stdout.text().splitlines()[self._answers - 1]
        answer: dict[str, Any] = json.loads(line)
        return answer


def is_capturing(pid: int, *, leased: bool = False) -> bool:
    """Whether a process has a region, and records into it; `leased`: for an exporter."""
    try:
        region = Region(pid)
        is_awaited = not leased or int(region.control["lease_until_ns"][0]) > 0
        return is_awaited and region.state is LibraryState.CAPTURING
    except (NoRegionError, OSError):
        return False


@contextmanager
def recorded(output: Path, variables: dict[str, str], *options: str) -> Iterator[Program]:
    """A program that `record` has started. It ends by itself, and so does the recorder, well."""
    with running(record_command(output, *TARGET, options=options), variables) as recorder:
        program = Program(recorder)
        yield program
        program.end()
        assert recorder.finish() == 0, recorder.stderr.text()


def read(output: Path) -> list[Event]:
    """Everything in a file, which is whole."""
    with ReplaySource(output, call_dtype=wire.CALL) as source:
        events = list(source.events())
        assert source.damage is None
    return events


def of(events: list[Event], kind: type[T]) -> list[T]:
    """The events of one type."""
    return [event for event in events if isinstance(event, kind)]


def rows_of(events: list[Event], *kinds: GpuKind) -> np.ndarray[Any, Any]:
    """Executions of some kinds, by start."""
    rows = np.concatenate([np.empty(0, EXECUTION), *(e.rows for e in of(events, Executions))])
    return np.sort(rows[np.isin(rows["kind"], kinds)], order="start_ns")


def launches_of(events: list[Event], begin_ns: int, end_ns: int) -> np.ndarray[Any, Any]:
    """Submissions that probes saw between two times, by start."""
    rows = np.concatenate([np.empty(0, wire.CALL), *(e.rows for e in of(events, Calls))])
    given = np.isin(rows["kind"], [wire.Kind.LAUNCH, wire.Kind.COPY, wire.Kind.SET])
    inside = (rows["start_ns"] >= begin_ns) & (rows["start_ns"] < end_ns)
    return np.sort(rows[given & inside], order="start_ns")


def window_of(events: list[Event]) -> tuple[int, int]:
    """Begin and end of the one window; what `finish_work` waited for is in it, however busy the machine was."""
    (begin,), (end,) = of(events, ExecutionsBegin), of(events, ExecutionsEnd)
    assert begin.process == end.process
    assert end.incomplete in ("", "not_flushed", "process_ended")
    return begin.time_ns, end.time_ns


def assert_one_to_one(apis: np.ndarray[Any, Any], launches: np.ndarray[Any, Any]) -> None:
    """Each launch in the driver is the last thing that its thread gave the device before, and the other way round.

    CUPTI keeps the low half of a thread's pointer.
    """
    threads = launches["thread_pointer"] & LOW_WORD
    assert set(apis["thread_pointer"].tolist()) == set(threads.tolist())
    for thread in set(threads.tolist()):
        ours = launches[threads == thread]
        theirs = apis[apis["thread_pointer"] == thread]
        found = np.searchsorted(ours["start_ns"], theirs["start_ns"], side="right") - 1
        assert found.tolist() == list(range(len(ours)))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the recorder writes."""
    return tmp_path / "test.ogfcap"


@pytest.fixture
def variables(library: Path) -> dict[str, str]:
    """Environment of programs on the fake driver and the fake CUPTI, with our library."""
    return environment(library, FAKE_CUDA_KERNEL_NS="20000")


def test_each_execution_has_its_launch(variables: dict[str, str], output: Path) -> None:
    """By thread and time the launches in the driver are those that probes saw, and executions have their ids."""
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("in_threads", threads=3, count=40)
        program.do("launch", kernel="_Z5saxpyPfS_fi", count=50)
        program.do("copies", size_bytes=4096)
        program.finish_work(1 + 2 * 175)
    events = read(output)
    launches = launches_of(events, *window_of(events))
    apis = rows_of(events, GpuKind.API)
    work = rows_of(events, GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)
    assert len(launches) >= 170
    assert_one_to_one(apis, launches)
    assert set(work["correlation_id"].tolist()) == set(apis["correlation_id"].tolist())
    assert set(work["tgid"].tolist()) == {program.pid}
    assert set(work["process_start_ns"].tolist()) == set(launches["process_start_ns"].tolist())
    kernels = work[work["kind"] == GpuKind.KERNEL]
    assert len(kernels) == 170
    assert (kernels["end_ns"] - kernels["start_ns"] == 20_000).all()
    assert (work["bytes"][work["kind"] != GpuKind.KERNEL] == 4096).all()


def test_a_program_that_launches_at_once_has_every_launch(
    variables: dict[str, str], output: Path
) -> None:
    """Before the recorder has found it; it ends as soon as the recorder has."""
    code = (
        "import sys; from tests.fakes.cuda_driver import FakeCuda; cuda = FakeCuda()\n"
        "[cuda.launch('at_once') for _ in range(100)]; cuda.synchronize()\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = record_command(output, sys.executable, "-c", code)
    with running(command, variables) as recorder:
        recorder.wait_for(lambda: recorder.stdout.text().count("\n") == 1, "the launches")
        (pid,) = children_of(recorder.process.pid)
        region = Region(pid)
        recorder.wait_for(lambda: int(region.control["lease_until_ns"][0]) > 0, "a lease")
        assert recorder.process.stdin is not None
        recorder.process.stdin.close()
        assert recorder.finish() == 0, recorder.stderr.text()
    events = read(output)
    launches = launches_of(events, 0, (1 << 63) - 1)
    apis, kernels = rows_of(events, GpuKind.API), rows_of(events, GpuKind.KERNEL)
    begin, end = of(events, ExecutionsBegin)[0], of(events, ExecutionsEnd)[0]
    assert len(launches) == 100
    assert begin.time_ns <= launches["start_ns"][0]
    # A machine that stood still for the 3 s of the first window has launches after it.
    inside = launches[launches["end_ns"] <= end.time_ns]
    assert len(inside) > 0
    assert_one_to_one(apis[: len(inside)], inside)
    assert len(kernels) >= len(inside)


def children_of(pid: int) -> list[int]:
    """Processes that it has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_names_and_devices_come_before_what_refers_to_them(
    variables: dict[str, str], output: Path
) -> None:
    """Names readable; the rows of a process before its end."""
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("launch", kernel="_Z5saxpyPfS_fi", count=5)
        program.finish_work(1 + 2 * 5)
    events = read(output)
    names: dict[int, str] = {}
    devices: set[int] = set()
    for event in events:
        if isinstance(event, Names):
            names.update({name.handle: name.readable for name in event.names})
        elif isinstance(event, Devices):
            devices.update(device.index for device in event.devices)
        elif isinstance(event, Executions):
            kernels = event.rows[event.rows["kind"] == GpuKind.KERNEL]
            assert set(kernels["device"].tolist()) <= devices
            assert {names[name] for name in set(kernels["name"].tolist())} <= {
                "saxpy(float*, float*, float, int)"
            }
    assert len(rows_of(events, GpuKind.KERNEL)) == 5
    (end,) = of(events, ExecutionsEnd)
    last_end = max(
        index
        for index, event in enumerate(events)
        if isinstance(event, ProcessesEnded) and end.process in event.processes
    )
    assert events.index(end) < last_end


def test_the_books_of_records_are_closed(variables: dict[str, str], output: Path) -> None:
    """What the library wrote is in the file."""
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("launch_many", count=5000)
        program.finish_work(1 + 2 * 5000)
    events = read(output)
    counts = {(c.kind, c.outcome): c.count for c in of(events, SourceCounters)[-1].counts}
    rows = sum(len(event.rows) for event in of(events, Executions))
    (end,) = of(events, ExecutionsEnd)
    marks = 1 if end.incomplete == "process_ended" else 2
    assert counts["execution", "seen"] == counts["execution", "sent"] == rows + marks
    assert len(rows_of(events, GpuKind.KERNEL)) == 5000


def test_a_recording_that_ends_first_has_the_last_executions(
    variables: dict[str, str], output: Path
) -> None:
    """Stopped while a running program goes on launching: the window ends whole, before probes go."""
    with running(TARGET, variables) as target:
        program = Program(target)
        with attached(output, program.pid) as recorder:
            program.wait_until_captured()
            program.do("launch_many", count=300)
            program.finish_work(1 + 2 * 300)
            recorder.process.send_signal(signal.SIGINT)
            program.do("launch_many", count=3000)
            assert recorder.finish() == 0, recorder.stderr.text()
        wait_for(lambda: not is_capturing(program.pid), "the end of the window")
        program.do("launch_many", count=3)
        program.end()
        assert target.finish() == 0
        assert target.stderr.text() == ""
    events = read(output)
    launches = launches_of(events, *window_of(events))
    begin_ns, end_ns = window_of(events)
    apis = rows_of(events, GpuKind.API)
    # At the edges a launch may have been on its way while recording was switched.
    inside = (apis["start_ns"] >= begin_ns) & (apis["end_ns"] < end_ns)
    assert inside.sum() >= 300
    matched = launches[launches["start_ns"] <= apis["start_ns"][inside].max()]
    assert_one_to_one(apis[inside], matched)


def test_a_recorder_that_is_killed_leaves_the_program_alone(
    variables: dict[str, str], output: Path
) -> None:
    """Its lease runs out, the program goes on, and the next recorder has it whole."""
    with running(TARGET, variables) as target:
        program = Program(target)
        with attached(output, program.pid) as recorder:
            program.wait_until_captured()
            program.do("launch_many", count=50)
            recorder.process.kill()
            recorder.finish()
        wait_for(lambda: not is_capturing(program.pid), "the end of the lease")
        program.do("launch_many", count=50)
        program.do("synchronize")
        output.unlink()
        with attached(output, program.pid) as recorder:
            program.wait_until_captured()
            written = Region(program.pid).counter(LibraryCounter.WRITTEN)
            program.do("launch_many", kernel="later", count=70)
            program.finish_work(written + 2 * 70)
            program.end()
            assert target.finish() == 0
            assert target.stderr.text() == ""
            assert recorder.finish() == 0, recorder.stderr.text()
    events = read(output)
    assert_one_to_one(rows_of(events, GpuKind.API), launches_of(events, *window_of(events)))
    assert len(rows_of(events, GpuKind.KERNEL)) == 70


def test_a_program_that_is_killed_keeps_what_it_has_done(
    variables: dict[str, str], output: Path
) -> None:
    """Its window is marked."""
    with running(record_command(output, *TARGET), variables) as recorder:
        program = Program(recorder)
        program.wait_until_captured()
        program.do("launch", count=20)
        program.finish_work(1 + 2 * 20)
        os.kill(program.pid, signal.SIGKILL)
        assert recorder.finish() == 128 + signal.SIGKILL, recorder.stderr.text()
    events = read(output)
    assert len(rows_of(events, GpuKind.KERNEL)) == 20
    assert [end.incomplete for end in of(events, ExecutionsEnd)] == ["process_ended"]


def test_a_program_that_executes_another_one_begins_anew(
    variables: dict[str, str], output: Path
) -> None:
    """Same pid, another region: two windows, and what each did is in it."""
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("launch", count=4)
        program.do("synchronize")
        program.do("exec")
        program.wait_until_captured()
        program.do("launch", count=6)
        program.finish_work(1 + 2 * 6)
    events = read(output)
    edges = [type(e) for e in events if isinstance(e, ExecutionsBegin | ExecutionsEnd)]
    assert edges == [ExecutionsBegin, ExecutionsEnd] * 2
    first, second = of(events, ExecutionsEnd)[0], of(events, ExecutionsBegin)[1]
    between = events[events.index(first) : events.index(second)]
    assert any(first.process in event.processes for event in of(between, ProcessesEnded))
    assert len(rows_of(events, GpuKind.KERNEL)) in range(6, 11)


def test_record_gives_a_command_the_packaged_library(
    variables: dict[str, str], output: Path
) -> None:
    """Nothing has to be set."""
    require("inject", LIBRARY.is_file(), "libogf_inject.so is missing: make native")
    del variables[VARIABLE]
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("launch", count=3)
        program.finish_work(1 + 2 * 3)
    events = read(output)
    window_of(events)
    assert len(rows_of(events, GpuKind.KERNEL)) == 3


def test_without_gpu_nothing_is_injected(variables: dict[str, str], output: Path) -> None:
    """And nothing is recorded of it."""
    del variables[VARIABLE]
    with recorded(output, variables, "--no-gpu") as program:
        program.do("launch", count=3)
        environ = Path(f"/proc/{program.pid}/environ").read_bytes()
        assert VARIABLE.encode() not in environ
    assert of(read(output), ExecutionsBegin) == []


def test_a_program_without_cupti_is_told_once(library: Path, output: Path) -> None:
    """Calls are recorded all the same, and the recorder ends as the command does."""
    with running(record_command(output, *TARGET), environment(library, cupti=False)) as recorder:
        program = Program(recorder)
        program.do("launch", count=3)
        recorder.wait_for(lambda: "no GPU times" in recorder.stderr.text(), "a message")
        program.end()
        assert recorder.finish() == 0
    messages = [line for line in recorder.stderr.text().splitlines() if "GPU times" in line]
    assert len(messages) == 1
    assert f"process {program.pid}: no GPU times: NO_CUPTI: it found no libcupti" in messages[0]


def test_a_program_that_never_uses_cuda_is_no_matter(
    variables: dict[str, str], output: Path
) -> None:
    """No region, no message."""
    recording = record(output, "true", environment=variables)
    assert recording.exit_code == 0
    assert "GPU times" not in recording.stderr
    assert of(read(output), ExecutionsBegin) == []
