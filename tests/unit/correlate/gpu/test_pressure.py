"""Records of full queues wait until all that ran meanwhile is known."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.gpu import pressure
from otel_gpuflame.correlate.gpu.join import Settled
from otel_gpuflame.correlate.gpu.pressure import Pressure
from otel_gpuflame.correlate.gpu.rows import JOINED
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CALL
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.unit.correlate.gpu.scene import OTHER_PROCESS, PROCESS, record

SECONDS = 1_000_000_000


def full(start: int, end: int, process: int = PROCESS) -> ExecutionArray:
    """CUPTI says that the command buffer was full."""
    return record(GpuKind.OVERHEAD, 6, start, end, tgid=process, process_start_ns=process)


def launch(start: int, end: int, process: int = PROCESS) -> CallArray:
    """A call that took so long."""
    row = np.zeros(1, CALL)
    row["start_ns"], row["end_ns"] = start, end
    row["tgid"] = row["process_start_ns"] = process
    return row


def settled(
    until: int,
    *others: ExecutionArray,
    launches: CallArray | None = None,
    open_ns: int | None = None,
) -> Settled:
    """What has been decided by a time."""
    none = np.zeros(0, JOINED)
    return Settled(
        since_ns=0,
        executions=none,
        late=none,
        others=np.concatenate([np.zeros(0, EXECUTION), *others]),
        until_ns=until,
        open_ns={} if open_ns is None else {0: open_ns},
        long_launches=np.zeros(0, CALL) if launches is None else launches,
    )


def times(rows: np.ndarray) -> list[tuple[int, int]]:
    """When rows begin and end."""
    return list(zip(rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True))


def test_records_are_due_when_nothing_is_open() -> None:
    """Where all executions that have begun have been decided, so have those during the record."""
    held = Pressure()
    records, launches = held.due(settled(100, full(10, 50), launches=launch(5, 60)))
    assert (times(records), times(launches)) == ([(10, 50)], [(5, 60)])
    records, launches = held.due(settled(200))
    assert (len(records), len(launches)) == (0, 0)


def test_records_wait_for_what_ran_meanwhile() -> None:
    """A kernel that began before the record ended is decided first; the launch is kept as long."""
    held = Pressure()
    records, _ = held.due(
        settled(100, full(10, 50), full(60, 90), launches=launch(5, 95), open_ns=70)
    )
    assert times(records) == [(10, 50)]
    records, launches = held.due(settled(150, full(120, 140), open_ns=110))
    assert (times(records), times(launches)) == ([(60, 90)], [(5, 95)])
    records, launches = held.due(settled(200, launches=launch(100, 145)))
    assert (times(records), times(launches)) == ([(120, 140)], [(100, 145)])


def test_a_kernel_that_runs_on_and_on_does_not_keep_records_back() -> None:
    """After two seconds what is known has to do."""
    held = Pressure()
    records, _ = held.due(settled(100, full(10, 50), open_ns=5))
    assert not len(records)
    records, _ = held.due(settled(2 * SECONDS + 49, open_ns=5))
    assert not len(records)
    records, _ = held.due(settled(2 * SECONDS + 50, open_ns=5))
    assert times(records) == [(10, 50)]


def test_records_of_other_kinds_are_not_kept() -> None:
    """Synchronisations and other overheads are not of full queues."""
    held = Pressure()
    others = (record(GpuKind.SYNC, 6, 10, 50), record(GpuKind.OVERHEAD, 1, 10, 50), full(50, 50))
    records, _ = held.due(settled(100, *others))
    assert not len(records)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many records the oldest are due at once."""
    monkeypatch.setattr(pressure, "_MAX_ROWS", 2)
    records, _ = Pressure().due(settled(100, *(full(at, at + 5) for at in (10, 20, 30)), open_ns=1))
    assert times(records) == [(10, 15)]


def test_ended_processes_are_forgotten() -> None:
    """Nothing of a process comes after its end; another one's records stay."""
    held = Pressure()
    launches = np.concatenate([launch(5, 60), launch(5, 60, OTHER_PROCESS)])
    others = (full(10, 50), full(10, 50, OTHER_PROCESS))
    held.due(settled(100, *others, launches=launches, open_ns=5))
    held.forget(ProcessKey(PROCESS, PROCESS))
    records, launches = held.due(settled(200))
    assert records["tgid"].tolist() == launches["tgid"].tolist() == [OTHER_PROCESS]
