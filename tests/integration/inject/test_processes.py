# SPDX-License-Identifier: Apache-2.0
"""Programs that fork, start others, end early or late, under the library: they notice nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpuflame.events.wire_gpu import GpuKind
from tests.fakes.build import ROOT, app_command, build_fakes, fake_environment
from tests.integration.inject.region import Region, of_kind
from tests.integration.inject.session import FINISHED_S, attempts, environment, session

pytestmark = pytest.mark.inject

HOUR_NS = 3_600_000_000_000
SHORT_LIVES = 20


def run(command: list[str], values: dict[str, str]) -> tuple[int, str, str]:
    """Status, output and errors of a program."""
    done = subprocess.run(
        command,
        env=values,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=FINISHED_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_forked_child_is_left_alone(library: Path) -> None:
    """In a window: it has no memory of ours, launches with a driver of its own, and records nothing."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", kernel="parent", count=10)
        answer = target.do("fork")
        target.do("launch_many", kernel="parent", count=10)
        target.do("synchronize")
        region.close_window()
        kernels = of_kind(region.read(), GpuKind.KERNEL)
        names = {region.name(int(handle)) for handle in kernels["name"]}
    assert answer == {"status": 0, "regions": 0, "launched": 10}
    assert len(kernels) == 20
    assert names == {"parent"}


def test_a_program_that_becomes_another_starts_afresh(library: Path) -> None:
    """The old memory is gone, the new program has its own."""
    with session(library) as target:
        before = target.region()
        before.open_window(1)
        target.do("launch_many", count=5)
        assert target.do("exec")["pid"] == target.pid
        region = target.region()
        assert int(region.field("records_head")) == 0
        region.open_window(1)
        target.do("launch_many", count=5)
        target.do("synchronize")
        region.close_window()
        assert len(of_kind(region.read(), GpuKind.KERNEL)) == 5


def test_processes_of_multiprocessing_run_on_their_own(library: Path) -> None:
    """A spawned one has the library too, and what it does is not in the parent's records."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        assert target.do("spawn", count=10) == {"status": 0}
        region.close_window()
        assert len(of_kind(region.read(), GpuKind.KERNEL)) == 0


@pytest.mark.parametrize("cupti", [True, False])
@pytest.mark.parametrize("name", ["app_launch", "app_fork"])
def test_output_and_status_are_those_without_us(library: Path, name: str, cupti: bool) -> None:
    """Byte for byte where the program says the same each time, and nothing on stderr."""
    arguments = ("10", "10", "10") if name == "app_fork" else ("10",)
    command = app_command(name, *arguments)
    plain = run(command, fake_environment(build_fakes()))
    ours = run(command, environment(library, cupti=cupti))
    assert ours[0] == plain[0] == 0
    assert ours[1].count("\n") == plain[1].count("\n") == 1
    assert ours[2] == plain[2] == ""


def test_a_program_that_may_not_make_large_files(library: Path) -> None:
    """It runs without our memory, where making it would send it a signal."""
    command = [
        *("sh", "-c", 'ulimit -f 100; exec "$@"', "sh"),
        *(sys.executable, "-c", "from tests.fakes.cuda_driver import FakeCuda; FakeCuda()"),
    ]
    assert run(command, environment(library)) == (0, "", "")


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_the_programs(library: Path, status: int) -> None:
    """Whatever it is."""
    program = (
        f"import sys; from tests.fakes.cuda_driver import FakeCuda; FakeCuda(); sys.exit({status})"
    )
    assert run([sys.executable, "-c", program], environment(library)) == (status, "", "")


def test_short_lives(library: Path) -> None:
    """Programs that only initialise the driver, launch once and end, one after the other."""
    program = "from tests.fakes.cuda_driver import FakeCuda; FakeCuda().launch('once')"
    for _ in range(SHORT_LIVES):
        assert run([sys.executable, "-S", "-c", program], environment(library)) == (0, "", "")


def test_a_program_that_ends_in_a_window_does_not_wait_for_the_device(library: Path) -> None:
    """What is still running after it has an hour to go."""
    for _ in attempts():
        with session(library) as target:
            region = target.region()
            region.open_window(1)
            target.do("launch", count=3, duration_ns=HOUR_NS)
            assert target.end() == ""
            records = region.read()
        if len(of_kind(records, GpuKind.WINDOW_CLOSE)):
            break
    assert len(of_kind(records, GpuKind.KERNEL)) == 3
    assert len(of_kind(records, GpuKind.WINDOW_CLOSE)) == 1


def test_a_program_ends_though_cupti_hangs(library: Path) -> None:
    """Our thread is inside CUPTI for ever: the program leaves it there, and what it does goes on."""
    with session(library, FAKE_CUPTI_FAULTS="hang") as target:
        target.region().lend(9, generation=1)
        target.do("launch_many", count=10)
        assert target.end() == ""


def test_what_was_done_before_the_end_is_there(library: Path) -> None:
    """The records of a program that ends in a window are in the memory that outlives it."""
    for _ in attempts():
        with session(library) as target:
            region = target.region()
            region.open_window(1)
            target.do("launch_many", count=50)
            target.do("synchronize")
            target.end()
            records = region.read()
        if len(of_kind(records, GpuKind.WINDOW_CLOSE)):
            break
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert len(of_kind(records, GpuKind.KERNEL)) == len(of_kind(records, GpuKind.API)) == 50
    assert closed["detail"] == 0


def test_a_program_that_is_killed_leaves_what_was_flushed(library: Path) -> None:
    """Its memory is still ours to read, without an end of the window."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=50)
        target.do("synchronize")
        kernels = 0
        while kernels < 50:
            kernels += len(of_kind(region.read(), GpuKind.KERNEL))
        target.process.kill()
        target.process.wait()
        assert len(of_kind(region.read(), GpuKind.WINDOW_CLOSE)) == 0
        target.process.returncode = 0


def test_two_programs_have_two_memories(library: Path) -> None:
    """Each has its own records."""
    with session(library) as first, session(library) as second:
        regions = [Region(first.pid), Region(second.pid)]
        for region in regions:
            region.open_window(1)
        first.do("launch_many", count=10)
        second.do("launch_many", count=20)
        for target, region in zip((first, second), regions, strict=True):
            target.do("synchronize")
            region.close_window()
        counts = [len(of_kind(region.read(), GpuKind.KERNEL)) for region in regions]
    assert counts == [10, 20]
