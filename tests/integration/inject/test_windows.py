# SPDX-License-Identifier: Apache-2.0
"""Windows begin and end with the exporter's lease, whatever it does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete, LibraryCounter, LibraryState, Limit
from tests.fakes.build import ROOT
from tests.integration.inject.region import of_kind, wait_for
from tests.integration.inject.session import session
from tests.integration.inject.worker import sleeps_without_limit, switches, worker_of

pytestmark = pytest.mark.inject

SWITCHES = 200
BATCH = 20_000
HOUR_NS = 3_600_000_000_000


def test_two_hundred_windows(library: Path) -> None:
    """Each has exactly what was launched in it, and nothing that was launched between two."""
    with session(library) as target:
        region = target.region()
        for generation in range(1, SWITCHES + 1):
            target.do("launch_many", kernel="outside", count=3)
            region.open_window(generation)
            target.do("launch_many", kernel="inside", count=5)
            target.do("synchronize")
            region.close_window()
        records = region.read()
        kernels = of_kind(records, GpuKind.KERNEL)
        names = {region.name(int(handle)) for handle in np.unique(kernels["name"])}
    closed = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert (closed["detail"] == Incomplete.COMPLETE).all()
    assert closed["correlation_id"].tolist() == list(range(1, SWITCHES + 1))
    assert names == {"inside"}
    assert len(kernels) == len(of_kind(records, GpuKind.API)) == 5 * SWITCHES


def test_nothing_is_recorded_without_a_lease(library: Path) -> None:
    """No record, no buffer, and a worker that sleeps without a timeout."""
    with session(library) as target:
        region = target.region()
        worker = worker_of(target.pid)
        wait_for(lambda: sleeps_without_limit(worker), "sleep")
        before = switches(worker)
        target.do("launch_many", count=1000)
        target.do("synchronize")
        assert switches(worker) == before
        assert region.state == LibraryState.DORMANT
        assert int(region.field("records_head")) == 0
        assert region.counter(LibraryCounter.BUFFERS) == 0


def test_the_worker_takes_no_signal(library: Path) -> None:
    """Those that can be blocked are, but for libc's own two: the program's threads get them."""
    with session(library) as target:
        lines = (worker_of(target.pid) / "status").read_text().splitlines()
    (blocked,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    unblocked = {number for number in range(1, 65) if not blocked >> (number - 1) & 1}
    assert unblocked <= {signal.SIGKILL, signal.SIGSTOP, 32, 33}


def test_a_lease_that_is_not_prolonged_ends_capture(library: Path) -> None:
    """Without a word from the exporter."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        region.lend(0.1)
        wait_for(lambda: region.state == LibraryState.DORMANT, "the lease's end")
        target.do("launch_many", count=10)
        records = region.read()
    (opened,) = of_kind(records, GpuKind.WINDOW_OPEN)
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert closed["start_ns"] >= int(region.control["lease_until_ns"][0])
    assert closed["start_ns"] > opened["end_ns"]
    assert len(of_kind(records, GpuKind.KERNEL)) == 0


def test_a_killed_exporter_ends_capture(library: Path) -> None:
    """Its lease runs out, and the next exporter gets a window of its own."""
    program = (
        "import sys, time\n"
        "from tests.integration.inject.region import Region\n"
        "region = Region(int(sys.argv[1]))\n"
        "region.open_window(1)\n"
        "print('open', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with session(library) as target:
        exporter = subprocess.Popen(
            [sys.executable, "-c", program, str(target.pid)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        with exporter:
            assert exporter.stdout is not None
            assert exporter.stdout.readline() == b"open\n"
            region = target.region()
            assert region.state == LibraryState.CAPTURING
            exporter.kill()
        wait_for(lambda: region.state == LibraryState.DORMANT, "the lease's end")
        region.read()
        region.open_window(2)
        target.do("launch_many", count=10)
        target.do("synchronize")
        region.close_window()
        assert len(of_kind(region.read(), GpuKind.KERNEL)) == 10


def test_another_generation_ends_the_window_and_begins_one(library: Path) -> None:
    """The lease goes on, the window does not."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", kernel="one", count=10)
        target.do("synchronize")
        region.open_window(2)
        target.do("launch_many", kernel="two", count=10)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    marks = records[np.isin(records["kind"], (GpuKind.WINDOW_OPEN, GpuKind.WINDOW_CLOSE))]
    assert marks["correlation_id"].tolist() == [1, 1, 2, 2]
    assert (of_kind(marks, GpuKind.WINDOW_CLOSE)["detail"] == Incomplete.COMPLETE).all()
    assert len(of_kind(records, GpuKind.KERNEL)) == 20


def test_work_that_goes_on_after_the_window_is_cut(library: Path) -> None:
    """The last flush is forced: the execution comes without times, and the window says so."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch", count=1, duration_ns=HOUR_NS)
        region.close_window()
        records = region.read()
        assert region.counter(LibraryCounter.NO_TIME) == 1
    (kernel,) = of_kind(records, GpuKind.KERNEL)
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert kernel["start_ns"] == kernel["end_ns"] == 0
    assert closed["detail"] == Incomplete.NOT_FLUSHED


def test_what_is_said_to_be_complete_is_complete(library: Path) -> None:
    """Up to complete_ns, each launch that has returned is there with its execution, under a queue never empty."""
    batch, batches = 20, 60
    returned_ns = list[int]()
    kernels = launches = 0
    with session(library, FAKE_CUDA_QUEUE_NS="2000000") as target:
        region = target.region()
        region.open_window(1)
        for _ in range(batches):
            target.do("launch", count=batch, duration_ns=100_000)
            returned_ns.append(time.monotonic_ns())
            complete_ns = int(region.field("complete_ns"))
            records = region.read()
            kernels += len(of_kind(records, GpuKind.KERNEL))
            launches += len(of_kind(records, GpuKind.API))
            promised = batch * sum(time_ns <= complete_ns for time_ns in returned_ns)
            assert min(kernels, launches) >= promised
        wait_for(lambda: int(region.field("complete_ns")) >= returned_ns[-1], "completeness")
        records = region.read()
        assert kernels + len(of_kind(records, GpuKind.KERNEL)) == batch * batches
        assert launches + len(of_kind(records, GpuKind.API)) == batch * batches


def test_a_full_ring_drops_and_counts(library: Path) -> None:
    """Nobody reads: the ring fills, the rest is counted, the window says so; reading goes on afterwards."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        while not region.counter(LibraryCounter.RING_FULL):
            target.do("launch_many", count=BATCH)
        target.do("synchronize")
        region.close_window()
        records = region.read()
        assert len(records) == Limit.RECORD_SLOTS == region.counter(LibraryCounter.WRITTEN)
        assert records[-1]["kind"] == GpuKind.WINDOW_CLOSE
        assert records[-1]["detail"] != Incomplete.COMPLETE
        region.open_window(2)
        target.do("launch_many", count=10)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    assert closed["detail"] == Incomplete.COMPLETE
    assert len(of_kind(records, GpuKind.KERNEL)) == 10


def test_every_record_of_a_long_window_is_there(library: Path) -> None:
    """Through several laps of the ring, with a reader that keeps up, nothing is lost and nothing comes twice."""
    kernels, launches = list[int](), list[int]()
    with session(library, FAKE_CUDA_KERNEL_NS="100") as target:
        region = target.region()
        region.open_window(1)

        def read() -> None:
            records = region.read()
            kernels.extend(of_kind(records, GpuKind.KERNEL)["correlation_id"].tolist())
            launches.extend(of_kind(records, GpuKind.API)["correlation_id"].tolist())

        for batches in range(1, 9):
            target.do("launch_many", count=BATCH)
            target.do("synchronize")
            while len(launches) < batches * BATCH:
                read()
        region.close_window()
        read()
    assert len(set(kernels)) == len(kernels) == 8 * BATCH
    assert sorted(kernels) == sorted(launches)


@pytest.mark.parametrize(("mode", "faults"), [("init", ""), ("window", ""), ("late", "late_api")])
def test_each_way_of_switching_launch_records(library: Path, mode: str, faults: str) -> None:
    """Window after window has a launch for each execution, where CUPTI allows it."""
    with session(library, OTEL_GPUFLAME_INJECT_API=mode, FAKE_CUPTI_FAULTS=faults) as target:
        region = target.region()
        for generation in (1, 2, 3):
            target.do("launch_many", count=10)
            region.open_window(generation)
            target.do("launch_many", count=10)
            target.do("synchronize")
            region.close_window()
        records = region.read()
    assert len(of_kind(records, GpuKind.KERNEL)) == len(of_kind(records, GpuKind.API)) == 30


def test_launch_records_that_are_asked_for_too_late_never_come(library: Path) -> None:
    """As measured: without an error."""
    with session(library, OTEL_GPUFLAME_INJECT_API="late") as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_many", count=10)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    assert len(of_kind(records, GpuKind.KERNEL)) == 10
    assert len(of_kind(records, GpuKind.API)) == 0
