# SPDX-License-Identifier: Apache-2.0
"""A profiler of the program's own gets everything that it would get without us; our windows wait for its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import (
    GpuKind,
    Incomplete,
    LibraryCounter,
    LibraryState,
)
from tests.integration.inject.other_clients import COUNT, end_of, without_us, work
from tests.integration.inject.region import Region, of_kind, wait_for
from tests.integration.inject.session import Session, session
from tests.integration.inject.worker import is_asleep, worker_of

pytestmark = pytest.mark.inject

LEASE_S = 9.0


def settled(target: Session) -> Region:
    """Its memory, once the library knows whose clock CUPTI has: at most 10 ms after cuInit, on an idle machine."""
    region = target.region()
    worker = worker_of(target.pid)
    wait_for(lambda: int(region.field("device_count")) > 0 and is_asleep(worker), "the driver")
    return region


def wait_until_it_stands_down(region: Region, generation: int) -> None:
    """The library has answered that lease with a no."""
    wait_for(
        lambda: (
            int(region.field("generation")) == generation
            and region.state == LibraryState.STANDING_DOWN
        ),
        f"standing down for {generation}",
    )


def assert_whole_window(target: Session, region: Region, generation: int) -> None:
    """A window that holds all of its work."""
    region.read()
    region.open_window(generation)
    work(target)
    region.close_window()
    records = region.read()
    assert reasons(records) == [Incomplete.COMPLETE]
    kernels = of_kind(records, GpuKind.KERNEL)
    assert kernels["grid"][:, 0].tolist() == [*range(1, COUNT + 1)] * 2


def reasons(records: NDArray[np.void]) -> list[int]:
    """Why windows are incomplete, in their order."""
    found: list[int] = of_kind(records, GpuKind.WINDOW_CLOSE)["detail"].tolist()
    return found


@pytest.mark.parametrize("windows_before", [0, 1])
def test_no_window_opens_under_a_profiler(library: Path, windows_before: int) -> None:
    """Nobody told the library of it: it looks at the clock. Also before it has ever had a window."""
    with session(library) as target:
        region = settled(target)
        for generation in range(1, windows_before + 1):
            assert_whole_window(target, region, generation)
        target.do("profile_begin")
        region.lend(LEASE_S, generation=10)
        wait_until_it_stands_down(region, 10)
        work(target)
        region.lend(LEASE_S)
        assert end_of(target) == without_us()
        records = region.read()
        assert reasons(records) == [Incomplete.STOOD_DOWN]
        assert len(records) == 2
        assert region.counter(LibraryCounter.STOOD_DOWN) == 1
        region.others_have_ended()
        assert_whole_window(target, region, 11)
        assert_whole_window(target, region, 12)


def test_a_profiler_without_a_clock_is_respected_where_the_exporter_knows(library: Path) -> None:
    """Of such a one only calls tell."""
    with session(library) as target:
        region = settled(target)
        assert_whole_window(target, region, 1)
        target.do("profile_begin", has_clock=False)
        region.other_has_begun()
        region.lend(LEASE_S, generation=2)
        wait_until_it_stands_down(region, 2)
        work(target)
        assert end_of(target) == without_us()
        assert reasons(region.read()) == [Incomplete.STOOD_DOWN]
        region.others_have_ended()
        assert_whole_window(target, region, 3)


@pytest.mark.parametrize("has_clock", [True, False])
def test_a_profiler_takes_an_open_window_over(library: Path, *, has_clock: bool) -> None:
    """It gets everything, the window says why it has ended, and nothing of ours is left on afterwards."""
    with session(library) as target:
        region = settled(target)
        region.open_window(1)
        work(target)
        target.do("profile_begin", has_clock=has_clock)
        if not has_clock:
            region.other_has_begun()
        wait_until_it_stands_down(region, 1)
        work(target)
        assert end_of(target) == without_us()
        assert reasons(region.read()) == [Incomplete.OTHER_CLIENT]
        region.others_have_ended()
        region.lend(-1)
        wait_for(lambda: region.state == LibraryState.DORMANT, "rest")
        target.do("profile_end")
        work(target)
        assert target.do("profile_end")["records"] == []
        assert_whole_window(target, region, 2)


def test_a_lease_that_ends_under_a_profiler_switches_nothing_off(library: Path) -> None:
    """However soon: before the window has noticed that it is lost."""
    with session(library) as target:
        region = settled(target)
        for generation in range(1, 21):
            region.open_window(generation)
            target.do("profile_begin")
            region.close_window()
            work(target)
            assert end_of(target) == without_us()
            region.others_have_ended()
        region.read()
        assert_whole_window(target, region, 21)


def test_a_window_waits_for_the_second_profiler_too(library: Path) -> None:
    """That one has ended allows another generation, and not a window under the next profiler."""
    with session(library) as target:
        region = settled(target)
        for run in range(3):
            target.do("profile_begin")
            region.lend(LEASE_S, generation=10 * run + 1)
            wait_until_it_stands_down(region, 10 * run + 1)
            work(target)
            assert end_of(target) == without_us()
            region.others_have_ended()
            assert_whole_window(target, region, 10 * run + 2)


def test_windows_are_whole_after_cupti_was_finalized(library: Path) -> None:
    """The profiler takes CUPTI out of the process with all that we had registered."""
    with session(library) as target:
        region = settled(target)
        target.do("profile_begin")
        work(target)
        assert end_of(target, finalize=True) == without_us()
        region.others_have_ended()
        region.open_window(1)
        work(target)
        region.close_window()
        assert reasons(region.read()) == [Incomplete.COMPLETE]


def test_a_profiler_ends_the_window_from_the_start(library: Path) -> None:
    """As any other."""
    with session(library, OTEL_GPUFLAME_INJECT_START="1") as target:
        region = settled(target)
        target.do("profile_begin")
        wait_for(lambda: region.state == LibraryState.STANDING_DOWN, "standing down")
        work(target)
        assert end_of(target) == without_us()
        assert reasons(region.read()) == [Incomplete.OTHER_CLIENT]


def test_a_fork_under_a_profiler_changes_nothing(library: Path) -> None:
    """The child has none of it: neither does its library disturb its parent's profiler."""
    with session(library) as target:
        region = settled(target)
        target.do("profile_begin")
        region.lend(LEASE_S, generation=1)
        wait_until_it_stands_down(region, 1)
        assert target.do("fork")["status"] == 0
        work(target)
        assert end_of(target) == without_us()
        region.others_have_ended()
        assert_whole_window(target, region, 2)


def test_a_clock_that_rests_with_us_is_no_other_client(library: Path) -> None:
    """Whether CUPTI asks us for the time while nothing is recorded is not known: if not, nothing follows from that."""
    with session(library, FAKE_CUPTI_FAULTS="idle_clock") as target:
        region = settled(target)
        for generation in (1, 2, 3):
            assert_whole_window(target, region, generation)
        region.open_window(4)
        target.do("profile_begin")
        wait_until_it_stands_down(region, 4)
        work(target)
        assert end_of(target) == without_us()
