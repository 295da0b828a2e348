"""Correlation and aggregation as one: profiles of both sides, and one set of books."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.events.executions import Executions, ExecutionsBegin
from otel_gpuflame.events.records import Calls, CaptureStart, Event, Watermark
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.ledger import Account
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_TIME, GPU_WAIT
from tests.unit.correlate.gpu.program import MS, Program
from tests.unit.correlate.gpu.traffic import PROCESS, executed, launched


def totals(bundles: list[Bundle]) -> dict[str, int]:
    """Σ of each sample type over all windows."""
    found: dict[str, int] = {}
    for bundle in bundles:
        for profile in bundle.profiles:
            name = profile.sample_type.type
            found[name] = found.get(name, 0) + profile.total
    return found


@pytest.mark.parametrize("window_ns", [None, 100 * MS], ids=["one window", "many windows"])
def test_executions_and_calls_give_one_profile(window_ns: int | None) -> None:
    """Kernel time is that of the executions, waits keep their time, launches are counted once, in all windows."""
    program = Program()
    for at in range(MS, 500 * MS, 10 * MS):
        program.kernel(at, at + 5_000, at + 4 * MS, stack=1)
        program.wait(at + 50_000, at + 4 * MS + 20_000)
    both = CorrelatingAggregator(AggregateOptions(window_ns=window_ns, span_link=None))
    start = CaptureStart(time_ns=0, unix_offset_ns=0, attributes=())
    bundles = [b for e in [start, *program.events(600 * MS)] for b in both.feed(e)]
    found = totals(bundles + both.finish())
    assert found[GPU_TIME.type] == 50 * (4 * MS - 5_000)
    assert found[GPU_WAIT.type] == 50 * (4 * MS - 30_000)
    assert found[GPU_LAUNCH.type] == 50
    assert not both.ledger.remarks["late for their window"]


def test_the_books_have_executions() -> None:
    """Executions are seen, profiled or dropped for a reason; what has no stack is remarked."""
    rows = np.concatenate(
        [
            launched(1, 10, 20),
            executed(1, 30, 40),
            executed(1, 30, 40),
            executed(2, 50, 60),
            executed(3, 0, 0),
        ]
    )
    events: list[Event] = [ExecutionsBegin(PROCESS, 0), Executions(rows), Watermark(1000 * MS)]
    both = CorrelatingAggregator()
    for event in [CaptureStart(time_ns=0, unix_offset_ns=0, attributes=()), *events]:
        both.feed(event)
    both.finish()
    (account,) = both.ledger.accounts()
    dropped = (("duplicate", 1), ("zero_time", 1))
    assert account == Account("execution", seen=4, profiled=2, dropped=dropped, pending=0)
    remarks = {
        text: count for text, count in both.ledger.remarks.items() if "without a stack" in text
    }
    assert remarks == {
        "executions without a stack: no launch record": 1,
        "executions without a stack: no probe": 1,
    }


def test_without_executions_nothing_is_held_back() -> None:
    """A window closes with the watermark after it, as ever."""
    program = Program()
    program.wait(10 * MS, 20 * MS)
    both = CorrelatingAggregator(AggregateOptions(window_ns=100 * MS))
    for event in (
        CaptureStart(time_ns=0, unix_offset_ns=0, attributes=()),
        Calls(program.calls[0][1]),
    ):
        both.feed(event)
    assert totals(both.feed(Watermark(100 * MS)))[GPU_WAIT.type] == 10 * MS
