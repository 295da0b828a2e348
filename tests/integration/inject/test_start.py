# SPDX-License-Identifier: Apache-2.0
"""Windows that the library opens by itself, before cuInit ends (OTEL_GPUFLAME_INJECT_START)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete, LibraryCounter, LibraryState
from tests.fakes.build import ROOT
from tests.integration.inject.region import NoRegionError, Region, of_kind, wait_for
from tests.integration.inject.session import HERE, Session, attempts, environment, session

pytestmark = pytest.mark.inject

COUNT = 50
MARKS = (GpuKind.WINDOW_OPEN, GpuKind.WINDOW_CLOSE)
CONCURRENT_KERNEL = 10


def starting(library: Path, **settings: Any) -> contextlib.AbstractContextManager[Session]:
    """A program whose library records from its beginning."""
    return session(library, OTEL_GPUFLAME_INJECT_START="1", **settings)


def wait_until_dormant(region: Region) -> None:
    """Until the window is closed."""
    wait_for(lambda: region.state == LibraryState.DORMANT, "the end of the window")


def is_in_time(records: NDArray[np.void], launched: dict[str, Any]) -> bool:
    """Whether what was launched was launched before the window closed."""
    closed = of_kind(records, GpuKind.WINDOW_CLOSE)["start_ns"]
    return len(closed) == 0 or bool(launched["spans"][-1][1] < closed[0])


def finish(target: Session, region: Region, records: int) -> NDArray[np.void]:
    """All records, of which there are at least so many before the end is told to the program.

    The library leaves a program half a second to end, which a busy machine may not be enough for.
    """
    target.do("synchronize")
    wait_for(
        lambda: (
            len(of_kind(region.peek(), GpuKind.WINDOW_CLOSE)) > 0
            or region.counter(LibraryCounter.WRITTEN) >= records
        ),
        "the records",
    )
    assert target.end() == ""
    return region.peek()


def is_complete(records: NDArray[np.void]) -> bool:
    """Whether the one window is, where its end was in time."""
    (opened,) = of_kind(records, GpuKind.WINDOW_OPEN)
    closed = of_kind(records, GpuKind.WINDOW_CLOSE)["detail"].tolist()
    return int(opened["correlation_id"]) == 0 and closed in ([], [Incomplete.COMPLETE])


@contextlib.contextmanager
def adopted(library: Path) -> Iterator[tuple[Session, Region]]:
    """Such a program that has launched COUNT kernels; its first window has our lease, of generation 1."""
    for _ in attempts():
        with starting(library) as target:
            region = target.region()
            target.do("launch", kernel="before", count=COUNT)
            region.open_window(1)
            if int(of_kind(region.peek(), GpuKind.WINDOW_OPEN)[-1]["correlation_id"]) == 0:
                yield target, region
                return
            region.close_window()


def test_what_a_program_does_at_once_is_recorded(library: Path) -> None:
    """Nobody has to come in time: the end of the program closes the window, and all is there."""
    for _ in attempts():
        with starting(library) as target:
            region = target.region()
            launched = target.do("launch", kernel="at_once", count=COUNT)
            records = finish(target, region, 1 + 2 * COUNT)
        if is_in_time(records, launched):
            break
    names = {region.name(int(h)) for h in of_kind(records, GpuKind.KERNEL)["name"]}
    assert len(of_kind(records, GpuKind.KERNEL)) == len(of_kind(records, GpuKind.API)) == COUNT
    assert names == {"at_once"}
    assert (of_kind(records, GpuKind.KERNEL)["device"] == 0).all()
    assert int(region.field("device_count")) == 1
    assert is_complete(records)


def test_the_first_lease_carries_the_window_on(library: Path) -> None:
    """Without a gap, and for as long as it runs; the next generation is another window."""
    with adopted(library) as (target, region):
        assert int(region.field("generation")) == 1
        target.do("launch", kernel="after", count=COUNT)
        target.do("synchronize")
        region.open_window(2)
        target.do("launch", count=COUNT)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    marks = records[np.isin(records["kind"], MARKS)]
    assert marks["kind"].tolist() == [*MARKS, *MARKS]
    assert marks["correlation_id"].tolist() == [0, 0, 2, 2]
    assert (of_kind(marks, GpuKind.WINDOW_CLOSE)["detail"] == Incomplete.COMPLETE).all()
    assert len(of_kind(records, GpuKind.KERNEL)) == len(of_kind(records, GpuKind.API)) == 3 * COUNT


def test_a_lease_that_ends_closes_the_window_that_it_has_carried_on(library: Path) -> None:
    """Though the library would have waited for longer."""
    with adopted(library) as (target, region):
        target.do("synchronize")
        region.close_window()
        target.do("launch", count=COUNT)
        records = region.read()
    assert len(of_kind(records, GpuKind.WINDOW_CLOSE)) == 1
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT


def test_an_exporter_that_came_and_went_closes_the_window(library: Path) -> None:
    """Before the library has looked even once: its lease is over, and none is waited for."""
    for _ in attempts():
        with starting(library) as target:
            region = target.region()
            region.lend(-1, generation=1)
            wait_until_dormant(region)
            (opened,), (closed,) = (of_kind(region.peek(), kind) for kind in MARKS)
        if closed["start_ns"] - opened["end_ns"] < 2_900_000_000:
            break


def test_without_an_exporter_the_window_ends_by_itself(library: Path) -> None:
    """After as long as a lease; then the library is as dormant as any, and the first lease is for a new window."""
    with starting(library) as target:
        region = target.region()
        wait_until_dormant(region)
        (opened,), (closed,) = (of_kind(region.peek(), kind) for kind in MARKS)
        assert closed["start_ns"] - opened["end_ns"] >= 2_900_000_000
        assert closed["detail"] == Incomplete.COMPLETE
        written = int(region.field("records_head"))
        target.do("launch_many", count=COUNT)
        assert int(region.field("records_head")) == written
        region.read()
        region.open_window(1)
        target.do("launch_many", count=COUNT)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    assert of_kind(records, GpuKind.WINDOW_OPEN)["correlation_id"].tolist() == [1]
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT


def test_a_killed_exporter_ends_the_window_that_it_has_carried_on(library: Path) -> None:
    """Its lease runs out; the next one gets a window of its own."""
    program = (
        "import sys, time\n"
        "from tests.integration.inject.region import Region\n"
        "Region(int(sys.argv[1])).lend(3, generation=1)\n"
        "print('lent', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with starting(library) as target:
        command = [sys.executable, "-c", program, str(target.pid)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as exporter:
            assert exporter.stdout is not None
            assert exporter.stdout.readline() == b"lent\n"
            exporter.kill()
        region = target.region()
        wait_until_dormant(region)
        region.read()
        region.open_window(2)
        target.do("launch_many", count=COUNT)
        target.do("synchronize")
        region.close_window()
        assert len(of_kind(region.read(), GpuKind.KERNEL)) == COUNT


def test_a_forked_child_and_a_new_program_begin_afresh(library: Path) -> None:
    """The child has no window; the program that is executed opens its own."""
    for _ in attempts():
        with starting(library) as target:
            region = target.region()
            assert target.do("fork") == {"status": 0, "regions": 0, "launched": 10}
            assert target.do("exec")["pid"] == target.pid
            second = target.region()
            launched = target.do("launch", count=COUNT)
            records = finish(target, second, 1 + 2 * COUNT)
        if is_in_time(records, launched):
            break
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT
    assert is_complete(records)
    assert len(of_kind(region.peek(), GpuKind.WINDOW_OPEN)) == 1


def test_a_program_without_a_device_is_no_trouble(library: Path) -> None:
    """Its cuInit fails, and it ends as it would."""
    program = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0) != 100)"
    settings: dict[str, Any] = {"OTEL_GPUFLAME_INJECT_START": "1", "FAKE_CUDA_DEVICES": "0"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment(library, **settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_first_window_that_is_refused_does_not_cost_the_next_one(library: Path) -> None:
    """It is marked; a lease tries again, and says why as ever."""
    with starting(library, FAKE_CUPTI_FAULTS=f"refuse={CONCURRENT_KERNEL}") as target:
        region = target.region()
        assert region.state == LibraryState.DORMANT
        region.keep_lending(1)
        wait_for(lambda: int(region.field("records_head")) == 4, "the marks of two windows")
        records = region.read()
    assert of_kind(records, GpuKind.WINDOW_CLOSE)["detail"].tolist() == [Incomplete.REFUSED] * 2


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_another_value_changes_nothing(library: Path, value: str) -> None:
    """The library is dormant until a lease comes."""
    with session(library, OTEL_GPUFLAME_INJECT_START=value) as target:
        region = target.region()
        target.do("launch_many", count=COUNT)
        assert region.state == LibraryState.DORMANT
        assert int(region.field("records_head")) == 0


@pytest.mark.parametrize(("start", "expected"), [("1", COUNT), ("0", 0)])
def test_calls_of_the_cuda_runtime_have_launch_records_only_from_the_start(
    library: Path, start: str, expected: int
) -> None:
    """CUPTI gives them where a kind was enabled before cuInit ended; their kernels come in any case."""
    settings: dict[str, Any] = {"OTEL_GPUFLAME_INJECT_START": start, "FAKE_CUDA_RUNTIME": "1"}
    with session(library, **settings) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=COUNT)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT
    assert len(of_kind(records, GpuKind.API)) == expected


def has_region(pid: int) -> bool:
    """Whether the library has been loaded there."""
    try:
        return Region(pid).state is not LibraryState.STARTING
    except (NoRegionError, ValueError):
        return False


@contextlib.contextmanager
def making_its_context(
    library: Path, gate: Path, **settings: Any
) -> Iterator[tuple[subprocess.Popen[str], Region]]:
    """A program that is inside cuDevicePrimaryCtxRetain until `gate` exists."""
    values: dict[str, Any] = {
        "FAKE_CUDA_CONTEXT_GATE": str(gate),
        "FAKE_CUPTI_FAULTS": "context_race",
        **settings,
    }
    with subprocess.Popen(
        [sys.executable, str(HERE / "target_app.py")],
        env=environment(library, **values),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_for(lambda: has_region(process.pid), "the library")
            yield process, Region(process.pid)
        finally:
            process.kill()


def is_opened_again(region: Region) -> bool:
    """Wait for the second window. False: there is none, for contexts are looked for in the first 5 s only."""
    (opened,) = of_kind(region.peek(), GpuKind.WINDOW_OPEN)[:1]
    too_late_ns = int(opened["start_ns"]) + 6_000_000_000

    def count() -> int:
        return len(of_kind(region.peek(), GpuKind.WINDOW_OPEN))

    wait_for(
        lambda: count() == 2 or int(region.field("complete_ns")) > too_late_ns, "a second window"
    )
    return count() == 2


def test_a_window_that_was_opened_while_a_context_was_made_is_opened_again(
    library: Path, tmp_path: Path
) -> None:
    """CUPTI may give no kernels in the first: that one says so, the second has them all."""
    for attempt in attempts():
        gate = tmp_path / str(attempt)
        with making_its_context(library, gate) as (process, region):
            region.open_window(1)
            gate.touch()
            target = Session(process)
            target.do("launch_many", kernel="early", count=COUNT)
            is_second = is_opened_again(region)
            target.do("launch_many", kernel="later", count=COUNT)
            target.do("synchronize")
            region.close_window()
            records = region.read()
            assert target.end() == ""
        if is_second:
            break
    closed = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert closed["detail"].tolist() == [Incomplete.NEW_CONTEXT, Incomplete.COMPLETE]
    assert of_kind(records, GpuKind.WINDOW_OPEN)["correlation_id"].tolist() == [1, 1]
    first_end = np.flatnonzero(records["kind"] == GpuKind.WINDOW_CLOSE)[0]
    assert len(of_kind(records[:first_end], GpuKind.KERNEL)) == 0
    names = [region.name(int(h)) for h in of_kind(records[first_end:], GpuKind.KERNEL)["name"]]
    assert names.count("later") == COUNT


def test_a_window_from_the_start_has_kernels_of_every_context(
    library: Path, tmp_path: Path
) -> None:
    """None can have been in the making when it was opened: it is neither marked nor opened again."""
    settings: dict[str, Any] = {"OTEL_GPUFLAME_INJECT_START": "1"}
    for attempt in attempts():
        gate = tmp_path / str(attempt)
        with making_its_context(library, gate, **settings) as (process, region):
            gate.touch()
            target = Session(process)
            launched = target.do("launch", count=COUNT)
            records = finish(target, region, 1 + 2 * COUNT)
        if is_in_time(records, launched):
            break
    assert is_complete(records)
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT


def test_a_lease_before_the_driver_is_ready_waits(library: Path) -> None:
    """Here cuInit fails for good: there is no window, and no record."""
    program = (
        "import ctypes, sys\n"
        "ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        env=environment(library, FAKE_CUDA_DEVICES="0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        region = Region(process.pid)
        region.lend(0.3, generation=1)
        wait_for(region.lease_is_over, "the lease's end")
        process.communicate()
        assert int(region.field("records_head")) == 0
        assert region.counter(LibraryCounter.BUFFERS) == 0
    assert process.returncode == 0
