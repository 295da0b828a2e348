"""Rows of any content: programs choose handles, threads and, through a broken clock, times."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu.backpressure import explain_backpressure
from otel_gpuflame.correlate.gpu.coverage import UNKNOWN
from otel_gpuflame.correlate.gpu.idle import explain_idle
from otel_gpuflame.correlate.gpu.legacy import find_defaults, remember
from otel_gpuflame.correlate.gpu.marks import find_marks, keep_marks
from otel_gpuflame.correlate.gpu.queue import explain_queue
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, by_device
from otel_gpuflame.correlate.gpu.scopes import find_scopes
from otel_gpuflame.correlate.gpu.streams import EMPTY, learn, learn_from_waits
from otel_gpuflame.correlate.gpu.timeline import busy_intervals, find_gaps
from otel_gpuflame.correlate.gpu.waits import explain_waits
from otel_gpuflame.correlate.gpu.work import arrange
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.executions import EXECUTION
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind

_EXTREMES = np.array([0, 1, 2, 3, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)


def garbage(random: np.random.Generator, dtype: np.dtype[np.void], count: int) -> np.ndarray:
    """Rows of numbers that are small, extreme or random."""
    rows = np.zeros(count, dtype)
    for name in dtype.names or ():
        column = rows[name]
        words = random.choice(_EXTREMES, column.size)
        small = random.integers(0, 4, column.size, dtype=np.uint64)
        any_ = random.integers(0, 2**64, column.size, dtype=np.uint64)
        chosen = np.choose(random.integers(0, 3, column.size), [small, words, any_])
        rows[name] = chosen.astype(column.dtype).reshape(column.shape)
    return rows


def executions(random: np.random.Generator, count: int) -> JoinedArray:
    """As the join hands them on: no execution ends before it begins."""
    rows = garbage(random, JOINED, count)
    start, end = rows["start_ns"].copy(), rows["end_ns"].copy()
    rows["start_ns"], rows["end_ns"] = np.minimum(start, end), np.maximum(start, end)
    rows["kind"] = random.integers(GpuKind.KERNEL, GpuKind.SET + 1, count)
    rows["no_launch"] = random.integers(0, 3, count)
    return by_device(rows)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_rows_hold_sums_are_exact(seed: int) -> None:
    """No content makes a step fail, and waits and gaps are explained to the last nanosecond all the same."""
    random = np.random.default_rng(seed)
    rows, calls = executions(random, 60), garbage(random, wire.CALL, 200)
    calls["kind"] = random.integers(0, Kind.DRIVER + 1, len(calls))
    calls["api"][:150] = random.choice([api.id for api in apis.ALL], 150)
    calls["flags"][:150] |= np.uint8(CallFlag.RETURNED)
    records = garbage(random, EXECUTION, 40)
    records["kind"] = random.integers(GpuKind.SYNC, GpuKind.OVERHEAD + 1, len(records))
    durations = find_waits(calls).duration_ns
    waits = calls.take(np.flatnonzero(durations))
    table = learn_from_waits(learn(EMPTY, rows), records, waits)
    work = arrange(rows, table)
    defaults = find_defaults(work, table)
    table = remember(table, work, defaults)
    marks = find_marks(keep_marks(calls, 2**62), work, table)
    scopes = find_scopes(waits, work, table, defaults, marks)
    explained = explain_waits(waits, work, scopes, np.zeros(len(waits), np.bool_))
    assert int(explained["value_ns"].astype(object).sum()) == int(durations.astype(object).sum())
    busy = busy_intervals(rows)
    assert (explain_queue(work, busy, marks).rows["value_ns"] != 0).all()
    explain_backpressure(records, calls, work, table)
    end_ns = 2**40
    devices = np.unique(rows["device"])
    gaps, busy_ns = find_gaps(busy, devices, 0, end_ns)
    found = explain_idle(gaps, rows, calls, garbage(random, UNKNOWN, 10))
    told = int(found.rows["value_ns"].sum())
    assert int(busy_ns.sum()) + told == end_ns * len(devices)
