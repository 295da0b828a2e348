"""Several processes on one device: whoever comes first and leaves last, its time is told whole."""

from __future__ import annotations

import pytest

from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.events.attributions import Leaf, Measure
from otel_gpuflame.events.executions import (
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Event, ProcessesEnded, Watermark
from tests.unit.correlate.gpu.program import MS, ROUND, Program, attributed, total_ns

FIRST, LAST = ProcessKey(100, 1), ProcessKey(101, 2)


def together(captured: dict[ProcessKey, tuple[int, int]], until: int) -> list[Event]:
    """Programs that are captured from and to these times, each with a kernel of 10 ms."""
    programs = {process: Program(process) for process in captured}
    for number, process in enumerate(captured):
        at = (150 + 50 * number) * MS
        programs[process].kernel(at, at + 5_000, at + 10 * MS, device=0)
    events: list[Event] = []
    for now in range(ROUND, until + ROUND, ROUND):
        for process, (begin, end) in captured.items():
            if now - ROUND <= begin < now:
                events.append(ExecutionsBegin(process, begin))
            events += programs[process]._round(now - ROUND, now)
            if begin < now <= end:
                events.append(ExecutionWatermark(process, now))
        events.append(Watermark(now))
        for process, (_, end) in captured.items():
            if now - ROUND <= end < now:
                ended = ExecutionsEnd(process, end, "process_ended")
                events += [ended, ProcessesEnded((process,))]
    return events


@pytest.mark.parametrize("begins", [(10, 110), (110, 10)])
@pytest.mark.parametrize("ends", [(320, 420), (420, 320)])
@pytest.mark.parametrize("processes", [(FIRST, LAST), (LAST, FIRST)])
def test_busy_idle_and_unknown_are_the_time_of_all_processes(
    begins: tuple[int, int], ends: tuple[int, int], processes: tuple[ProcessKey, ProcessKey]
) -> None:
    """From the first begin to the last end, whichever process has the smaller pid, or is taken note of first."""
    captured = {
        process: (begin * MS + 1, end * MS + 1)
        for process, begin, end in zip(processes, begins, ends, strict=True)
    }
    correlator = GpuCorrelator()
    events = [out for each in together(captured, 1_000 * MS) for out in correlator.feed(each)]
    rows = attributed([*events, *correlator.finish()])
    assert total_ns(rows, Measure.GPU_TIME) + total_ns(rows, Measure.GPU_IDLE) == 410 * MS
    idle = rows[rows["measure"] == Measure.GPU_IDLE]
    assert Leaf.BEFORE_FIRST in idle["leaf"]
