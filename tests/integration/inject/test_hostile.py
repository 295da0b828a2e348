# SPDX-License-Identifier: Apache-2.0
"""An exporter that writes anything, anywhere it can: the program is unharmed, and capture works afterwards."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import time
from pathlib import Path

import pytest

from otel_gpuflame.events.wire_gpu import GpuKind, LibraryCounter, LibraryState, Limit
from tests.integration.inject.region import Region, find_region, of_kind, wait_for
from tests.integration.inject.session import Session, session

pytestmark = pytest.mark.inject

ROUNDS = 300
BETWEEN_WINDOWS_NS = 50_000_000
FOREVER = (1 << 64) - 1
F_GET_SEALS = 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1, 2, 4


def test_the_memory_cannot_be_resized(library: Path) -> None:
    """Sealed against shrinking, growing and further seals."""
    with session(library) as target:
        fd = os.open(find_region(target.pid), os.O_RDWR)
        try:
            assert fcntl.fcntl(fd, F_GET_SEALS) & 7 == SEAL_SEAL | SEAL_SHRINK | SEAL_GROW
            for size in (0, 1 << 30):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)
        finally:
            os.close(fd)


def works(target: Session, generation: int) -> bool:
    """Whether a new exporter gets its window."""
    region = target.region()
    region.control["records_tail"] = region.field("records_head")
    region.read()
    region.lend(-1)
    region.open_window(generation)
    target.do("launch_many", kernel="after", count=10)
    target.do("synchronize")
    region.close_window()
    return len(of_kind(region.read(), GpuKind.KERNEL)) == 10


def test_garbage_on_the_control_page(library: Path) -> None:
    """Random bytes, again and again, while the program launches."""
    numbers = random.Random(4)
    with session(library) as target:
        region = target.region()
        for _ in range(ROUNDS):
            for field in ("generation", "lease_until_ns", "records_tail"):
                region.control[field] = numbers.getrandbits(32 if field == "generation" else 64)
            region.wake()
            target.do("launch_many", count=20)
        region.lend(-1)
        wait_for(lambda: region.state == LibraryState.DORMANT, "rest")
        assert works(target, 1 << 31)


def test_garbage_everywhere(library: Path) -> None:
    """The whole memory overwritten in a window: records may be lost, but nothing else."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", kernel="before", count=100)
        fd = os.open(find_region(target.pid), os.O_RDWR)
        with mmap.mmap(fd, os.fstat(fd).st_size) as memory:
            os.close(fd)
            memory[:] = os.urandom(1 << 20) * (len(memory) >> 20) + b"\xff" * (
                len(memory) % (1 << 20)
            )
        region.wake()
        target.do("launch_many", kernel="before", count=1000)
        target.do("launch", kernel="another", count=10)
        target.do("synchronize")
        assert target.end() == ""


def test_a_lease_without_end_is_cut(library: Path) -> None:
    """It ends, and the same one begins no second window."""
    with session(library) as target:
        region = target.region()
        region.control["lease_until_ns"] = FOREVER
        region.control["generation"] = 1
        region.wake()
        wait_for(lambda: region.state == LibraryState.CAPTURING, "capture")
        wait_for(lambda: region.state == LibraryState.DORMANT, "the end of 10 s")
        (opened,) = of_kind(records := region.read(), GpuKind.WINDOW_OPEN)
        (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
        assert closed["start_ns"] - opened["start_ns"] >= 9_900_000_000
        region.wake()
        target.do("launch_many", count=10)
        assert region.state == LibraryState.DORMANT


@pytest.mark.parametrize("tail", [1, FOREVER])
def test_an_impossible_tail_stops_the_ring(library: Path, tail: int) -> None:
    """Ahead of the head, or of another age: after one ring of records nothing more is written, and counted."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        region.control["records_tail"] = tail
        while not region.counter(LibraryCounter.RING_FULL):
            target.do("launch_many", count=20_000)
        assert int(region.field("records_head")) <= Limit.RECORD_SLOTS + 1
        region.close_window()
        assert works(target, 2)


def test_leases_that_change_all_the_time_do_not_switch_cupti_all_the_time(library: Path) -> None:
    """However often it is woken, windows begin at a bounded rate."""
    with session(library) as target:
        region = target.region()
        begin_ns = time.monotonic_ns()
        for generation in range(1, 2000):
            region.lend(9, generation=generation)
        region.lend(-1)
        wait_for(lambda: region.state == LibraryState.DORMANT, "rest")
        opened = of_kind(region.read(), GpuKind.WINDOW_OPEN)
        assert len(opened) <= 1 + (time.monotonic_ns() - begin_ns) // BETWEEN_WINDOWS_NS


def test_a_memory_that_was_left_behind_can_still_be_read(library: Path) -> None:
    """The exporter's mapping outlives the program."""
    with session(library) as target:
        region = Region(target.pid)
        target.end()
        assert region.state == LibraryState.ENDED
