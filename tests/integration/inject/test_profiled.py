# SPDX-License-Identifier: Apache-2.0
"""`record` beside a profiler of the program's own: it gets all that it would get without us, and we come back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.events import wire
from otel_gpuflame.events.executions import ExecutionsEnd
from otel_gpuflame.events.records import Calls, SourceCounters
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryCounter, LibraryState
from tests.integration.bpf.session import Running, attached, running
from tests.integration.inject.other_clients import COUNT, end_of, without_us, work
from tests.integration.inject.region import Region
from tests.integration.inject.session import environment
from tests.integration.inject.test_recorded import (
    TARGET,
    Program,
    is_capturing,
    of,
    read,
    recorded,
    rows_of,
)

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]

RECORDED = 2 * COUNT
"""Kernels of one `work`."""
LAUNCHES = RECORDED + 5
"""With its copies and its set."""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the recorder writes."""
    return tmp_path / "test.ogfcap"


@pytest.fixture
def variables(library: Path) -> dict[str, str]:
    """Environment of programs on the fake driver and the fake CUPTI, with our library."""
    return environment(library)


def work_until_written(recorder: Running, program: Program) -> None:
    """What CUPTI still has when a profiler begins is lost to us."""
    region = Region(program.pid)
    before = region.counter(LibraryCounter.WRITTEN)
    work(program)
    recorder.wait_for(
        lambda: region.counter(LibraryCounter.WRITTEN) >= before + 2 * LAUNCHES, "the records"
    )


def wait_until_it_stands_down(recorder: Running, program: Program) -> None:
    """The library has made way."""
    region = Region(program.pid)
    recorder.wait_for(lambda: region.state == LibraryState.STANDING_DOWN, "standing down")


def wait_until_it_is_back(recorder: Running, program: Program, since: int) -> None:
    """It records again, for another generation than `since`."""
    region = Region(program.pid)
    recorder.wait_for(
        lambda: is_capturing(program.pid) and int(region.field("generation")) != since,
        "another window",
    )


def profile(recorder: Running, program: Program, *, has_clock: bool) -> None:
    """A profiler begins, has the program work, and ends; it must not notice us. Returns when we are back."""
    generation = int(Region(program.pid).field("generation"))
    program.do("profile_begin", has_clock=has_clock)
    wait_until_it_stands_down(recorder, program)
    work(program)
    assert end_of(program) == without_us()
    wait_until_it_is_back(recorder, program, generation)


@pytest.mark.parametrize("has_clock", [True, False])
def test_two_profilers_in_a_recording(
    variables: dict[str, str], output: Path, *, has_clock: bool
) -> None:
    """What is launched before, between and after them is recorded whole, and nothing under them."""
    with recorded(output, variables) as program:
        recorder = program.recorder
        program.wait_until_captured()
        work_until_written(program.recorder, program)
        for _ in range(2):
            profile(recorder, program, has_clock=has_clock)
            program.do("fork")
            work_until_written(recorder, program)
        assert "another profiler of the program uses CUPTI" in recorder.stderr.text()
    events = read(output)
    assert len(rows_of(events, GpuKind.KERNEL)) == 3 * RECORDED
    reasons = Counter(end.incomplete for end in of(events, ExecutionsEnd))
    assert reasons["other_client"] == 2
    assert set(reasons) <= {"other_client", "stood_down", "", "process_ended"}
    counts = {(c.kind, c.outcome): c.count for c in of(events, SourceCounters)[-1].counts}
    assert counts["execution_window", "stood_down"] >= 2
    assert counts["cupti", "seen"] == counts["cupti", "sent"] > 0
    assert all(wire.Kind.CUPTI not in event.rows["kind"] for event in of(events, Calls))


def test_a_recording_that_begins_under_a_profiler(variables: dict[str, str], output: Path) -> None:
    """The library says that there is one, and probes that it has ended."""
    with running(TARGET, variables) as target:
        program = Program(target)
        region = Region(program.pid)
        target.wait_for(lambda: int(region.field("device_count")) > 0, "the driver")
        program.do("profile_begin")
        with attached(output, program.pid) as recorder:
            wait_until_it_stands_down(recorder, program)
            generation = int(region.field("generation"))
            work(program)
            assert end_of(program) == without_us()
            wait_until_it_is_back(recorder, program, generation)
            work_until_written(recorder, program)
            program.end()
            assert recorder.finish() == 0, recorder.stderr.text()
        assert target.finish() == 0
        assert target.stderr.text() == ""
    events = read(output)
    assert len(rows_of(events, GpuKind.KERNEL)) == RECORDED
    assert of(events, ExecutionsEnd)[0].incomplete == "stood_down"


def test_a_profiler_that_never_ends(variables: dict[str, str], output: Path) -> None:
    """What it asked for is left to it, and the recording ends with the program."""
    with recorded(output, variables) as program:
        program.wait_until_captured()
        work_until_written(program.recorder, program)
        program.do("profile_begin")
        wait_until_it_stands_down(program.recorder, program)
        work(program)
    events = read(output)
    assert len(rows_of(events, GpuKind.KERNEL)) == RECORDED
    assert of(events, ExecutionsEnd)[0].incomplete == "other_client"


def test_a_program_that_is_killed_under_its_profiler(
    variables: dict[str, str], output: Path
) -> None:
    """The recording ends with it, and has what came before."""
    with running(TARGET, variables) as target:
        program = Program(target)
        with attached(output, program.pid) as recorder:
            program.wait_until_captured()
            work_until_written(recorder, program)
            program.do("profile_begin")
            wait_until_it_stands_down(recorder, program)
            target.process.kill()
            assert recorder.finish() == 0, recorder.stderr.text()
    events = read(output)
    assert len(rows_of(events, GpuKind.KERNEL)) == RECORDED
    assert [end.incomplete for end in of(events, ExecutionsEnd)] == ["other_client"]
