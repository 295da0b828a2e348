# SPDX-License-Identifier: Apache-2.0
"""What CUPTI does wrong, or another client of it does, is counted and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import (
    GpuKind,
    Incomplete,
    LibraryCounter,
    LibraryError,
    LibraryState,
)
from tests.integration.inject.region import Region, of_kind, wait_for
from tests.integration.inject.session import Session, session

pytestmark = pytest.mark.inject

COUNT = 100
HOUR_NS = 3_600_000_000_000
NOT_COMPATIBLE = 14
CONCURRENT_KERNEL, OVERHEAD = 10, 17


def record_window(target: Session, region: Region, generation: int = 1) -> NDArray[np.void]:
    """What a window with COUNT launches holds."""
    region.open_window(generation)
    target.do("launch_many", count=COUNT)
    target.do("synchronize")
    region.close_window()
    return region.read()


def reason(records: NDArray[np.void]) -> Incomplete:
    """Why the window is incomplete."""
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    return Incomplete(int(closed["detail"]))


@pytest.mark.parametrize(
    ("faults", "kernels"), [("duplicate=10", 110), ("drop=10", 90), ("unknown=10", 100)]
)
def test_records_are_handed_on_as_they_come(library: Path, faults: str, kernels: int) -> None:
    """Two of one, or none: that is for the correlator to see."""
    with session(library, FAKE_CUPTI_FAULTS=faults) as target:
        records = record_window(target, target.region())
    assert len(of_kind(records, GpuKind.KERNEL)) == kernels
    assert len(of_kind(records, GpuKind.API)) == COUNT
    assert reason(records) == Incomplete.COMPLETE


def test_unknown_kinds_are_counted(library: Path) -> None:
    """And those after them in the buffer are read."""
    with session(library, FAKE_CUPTI_FAULTS="unknown=10") as target:
        region = target.region()
        record_window(target, region)
        assert region.counter(LibraryCounter.UNKNOWN_KIND) == COUNT // 10


def test_records_without_times_are_counted_and_handed_on(library: Path) -> None:
    """They are executions all the same."""
    with session(library, FAKE_CUPTI_FAULTS="zero=10") as target:
        region = target.region()
        kernels = of_kind(record_window(target, region), GpuKind.KERNEL)
        assert region.counter(LibraryCounter.NO_TIME) == COUNT // 10
    assert len(kernels) == COUNT
    assert (kernels["start_ns"] == 0).sum() == COUNT // 10


def test_inverted_times_are_handed_on(library: Path) -> None:
    """As CUPTI has them."""
    with session(library, FAKE_CUPTI_FAULTS="invert=10") as target:
        kernels = of_kind(record_window(target, target.region()), GpuKind.KERNEL)
    assert (kernels["start_ns"] > kernels["end_ns"]).sum() == COUNT // 10


def test_ids_wrap(library: Path) -> None:
    """From 2^32 - 1 to 0 and on: each execution still has the id of its launch."""
    with session(library, FAKE_CUPTI_FAULTS="wrap") as target:
        records = record_window(target, target.region())
    kernels, launches = of_kind(records, GpuKind.KERNEL), of_kind(records, GpuKind.API)
    assert sorted(kernels["correlation_id"]) == sorted(launches["correlation_id"])
    assert len(kernels) == COUNT
    assert (kernels["correlation_id"] > 0xFFFFFF00).any() or (
        kernels["correlation_id"] < COUNT
    ).all()


def test_what_cupti_drops_is_counted(library: Path) -> None:
    """And makes the window incomplete, but not the next one."""
    with session(library, FAKE_CUPTI_FAULTS="dropped=100") as target:
        region = target.region()
        first = record_window(target, region, 1)
        assert region.counter(LibraryCounter.CUPTI_DROPPED) == 1
        region.open_window(2)
        target.do("launch_many", count=COUNT - 1)
        target.do("synchronize")
        region.close_window()
        second = region.read()
    assert reason(first) == Incomplete.CUPTI_DROPPED
    assert reason(second) == Incomplete.COMPLETE


def test_late_records_come(library: Path) -> None:
    """Those that CUPTI gives out long after their execution are not lost while the window is open."""
    with session(library, FAKE_CUPTI_FAULTS="late=10") as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=COUNT)
        kernels = 0

        def all_are_there() -> bool:
            nonlocal kernels
            kernels += len(of_kind(region.read(), GpuKind.KERNEL))
            return kernels == COUNT

        wait_for(all_are_there, "the late records")


def test_buffers_that_never_come_back_run_out(library: Path) -> None:
    """CUPTI gets no more than there are; the launches after that are counted, and a forced flush ends it."""
    with session(library, FAKE_CUPTI_FAULTS="starve") as target:
        region = target.region()
        region.open_window(1)
        while not region.counter(LibraryCounter.NO_BUFFER):
            target.do("launch_many", count=5000)
            region.read()
        region.close_window()
        records = region.read()
        assert region.counter(LibraryCounter.CUPTI_DROPPED) > 0
        assert len(of_kind(records, GpuKind.KERNEL)) > 1000
        assert reason(records) == Incomplete.NO_BUFFER


@pytest.mark.parametrize("launches_first", [0, 20])
def test_another_client_makes_the_window_incomplete(library: Path, launches_first: int) -> None:
    """It has taken our place without a word; the window ends, the next one is whole again."""
    with session(library, FAKE_CUPTI_FAULTS=f"steal={launches_first + 1}") as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=launches_first + 1)
        wait_for(lambda: region.state == LibraryState.STANDING_DOWN, "standing down")
        target.do("launch_many", count=COUNT)
        assert reason(region.read()) == Incomplete.OTHER_CLIENT
        target.do("synchronize")
        region.others_have_ended()
        second = record_window(target, region, 2)
        third = record_window(target, region, 3)
    for records in (second, third):
        assert reason(records) == Incomplete.COMPLETE
        assert len(of_kind(records, GpuKind.KERNEL)) == COUNT


def test_a_buffer_of_another_client_makes_the_window_incomplete(library: Path) -> None:
    """It still had work in it when we took its place, and so has taken records of ours."""
    with session(library, FAKE_CUPTI_FAULTS="steal=1") as target:
        region = target.region()
        region.open_window(1)
        target.do("launch", duration_ns=HOUR_NS)
        wait_for(lambda: region.state == LibraryState.STANDING_DOWN, "standing down")
        region.read()
        region.others_have_ended()
        region.open_window(2)
        target.do("launch_many", count=COUNT)
        region.close_window()
        assert reason(region.read()) == Incomplete.OTHER_CLIENT


def test_a_lease_whose_window_was_lost_gets_no_second_one(library: Path) -> None:
    """Prolonging it does not take the other client's place."""
    with session(library, FAKE_CUPTI_FAULTS="steal=1") as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=1)
        wait_for(lambda: region.state == LibraryState.STANDING_DOWN, "standing down")
        written = int(region.field("records_head"))
        for _ in range(10):
            region.lend(9)
            target.do("launch_many", count=COUNT)
        assert region.state == LibraryState.STANDING_DOWN
        assert int(region.field("records_head")) == written


def test_a_refused_window_says_why(library: Path) -> None:
    """CUPTI's error is in the memory; the window is closed at once, and the program runs."""
    with session(library, FAKE_CUPTI_FAULTS=f"refuse={CONCURRENT_KERNEL}") as target:
        region = target.region()
        region.keep_lending(1)
        wait_for(lambda: int(region.field("records_head")) == 2, "the window's marks")
        target.do("launch_many", count=COUNT)
        assert reason(region.read()) == Incomplete.REFUSED
        assert LibraryError(int(region.field("error"))) == LibraryError.CUPTI_ERROR
        assert int(region.field("cupti_result")) == NOT_COMPATIBLE
        assert region.state == LibraryState.DORMANT


def test_a_kind_that_is_not_there_is_done_without(library: Path) -> None:
    """Only kernels have to be recorded."""
    with session(library, FAKE_CUPTI_FAULTS=f"refuse={OVERHEAD}") as target:
        records = record_window(target, target.region())
    assert len(of_kind(records, GpuKind.KERNEL)) == COUNT
    assert reason(records) == Incomplete.COMPLETE
