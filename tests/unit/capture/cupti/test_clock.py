"""Programs in a time namespace have another CLOCK_MONOTONIC: their times and their leases are in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.cupti import source as module
from otel_gpuflame.capture.cupti.clock import clock_offset_ns
from otel_gpuflame.capture.cupti.lease import LEASE_NS
from otel_gpuflame.events.executions import ExecutionsBegin, ExecutionsEnd, ExecutionWatermark
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.capture.cupti.test_source import of, reading, rows, step
from tests.unit.capture.cupti.writer import edge, kernels, target

HOUR_NS = 3600 * 10**9


def namespace(proc: Path, name: str, number: int, offsets: str | None) -> None:
    """A process in a time namespace."""
    (proc / name / "ns").mkdir(parents=True)
    os.symlink(f"time:[{number}]", proc / name / "ns" / "time")
    if offsets is not None:
        (proc / name / "timens_offsets").write_text(offsets)


def test_processes_of_one_namespace_have_one_clock(tmp_path: Path) -> None:
    """Nothing is read of them but that, and where the kernel has no such namespaces, neither."""
    namespace(tmp_path, "self", 1, None)
    namespace(tmp_path, "42", 1, None)
    assert clock_offset_ns(42, tmp_path) == 0
    assert clock_offset_ns(43, tmp_path) == 0
    assert clock_offset_ns(os.getpid()) == 0


@pytest.mark.parametrize(
    ("own", "theirs", "expected"),
    [
        ("monotonic 0 0\nboottime 0 0\n", "monotonic  3600  5\nboottime  7 0\n", HOUR_NS + 5),
        ("monotonic 3600 0\n", "monotonic 0 0\n", -HOUR_NS),
        ("monotonic 0 0\n", "monotonic -3600 0\n", -HOUR_NS),
        ("monotonic 0 0\n", "garbage\n", 0),
    ],
)
def test_the_offset_is_the_difference_of_both(
    own: str, theirs: str, expected: int, tmp_path: Path
) -> None:
    """Ours may be shifted too, as in a container."""
    namespace(tmp_path, "self", 1, own)
    namespace(tmp_path, "42", 2, theirs)
    assert clock_offset_ns(42, tmp_path) == expected


@pytest.mark.parametrize("offset_ns", [HOUR_NS, -2 * 10**9])
def test_times_come_out_in_our_clock(offset_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, windows and watermarks; the lease goes in in theirs."""
    monkeypatch.setattr(module, "clock_offset_ns", lambda *_: offset_ns)
    with target() as writer, reading(writer) as source:
        until_ns = int(writer.control["lease_until_ns"][0]) - offset_ns
        assert 0 < until_ns - time.monotonic_ns() <= LEASE_NS
        begin_ns = time.monotonic_ns()
        writer.write(edge(GpuKind.WINDOW_OPEN, begin_ns + offset_ns))
        sent = kernels(2)
        for column in ("start_ns", "end_ns"):
            sent[column] = sent[column].astype(np.int64) + offset_ns
        writer.write(sent)
        writer.library["complete_ns"] = begin_ns + 1 + offset_ns
        events = step(source)
        end_ns = time.monotonic_ns()
        writer.write(edge(GpuKind.WINDOW_CLOSE, end_ns + offset_ns))
        events += step(source)
    for column in ("start_ns", "end_ns"):
        assert (rows(events)[column].astype(np.int64) + offset_ns == sent[column]).all()
    assert [event.time_ns for event in of(events, ExecutionsBegin)] == [begin_ns]
    assert [event.time_ns for event in of(events, ExecutionWatermark)] == [begin_ns + 1]
    assert [event.time_ns for event in of(events, ExecutionsEnd)] == [end_ns]
