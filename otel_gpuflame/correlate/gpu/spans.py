"""Times in which a device was idle, and what the threads did that ended them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.activities import Activities, find_activities
from otel_gpuflame.correlate.gpu.coverage import GapParts
from otel_gpuflame.correlate.gpu.keys import (
    Codes,
    Index,
    Times,
    codes_of,
    shared_codes,
    stable_order,
)
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.correlate.gpu.timeline import Gaps
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.records import CallArray

THREAD: Final = ("process_start_ns", "tgid", "tid")


class Spans(NamedTuple):
    """Idle times and who ended them. `pool`: device and thread; -1: the thread is not known."""

    device: NDArray[np.uint32]
    start_ns: Times
    end_ns: Times
    ended_by: Index
    thread: Codes
    pool: Codes


class Did(NamedTuple):
    """Calls of threads that ended gaps, the thread of each (a number below `threads`), and what they did when."""

    calls: CallArray
    thread: Codes
    activities: Activities
    threads: int


def idle_spans(
    gaps: Gaps, parts: GapParts, known: Index, executions: JoinedArray, calls: CallArray
) -> tuple[Spans, Did]:
    """Idle spans by pool and time, and what their threads did."""
    ended_by = gaps.ended_by[parts.gap[known]]
    device = gaps.device[parts.gap[known]]
    has_launch = executions["no_launch"][ended_by] == NoLaunch.NONE
    thread, threads, count = shared_codes(
        [executions[name][ended_by] for name in THREAD], [calls[name] for name in THREAD]
    )
    matters = np.zeros(count, np.bool_)
    matters[thread[has_launch]] = True
    mine = np.flatnonzero(matters[threads])
    thread = np.where(has_launch, thread, count)
    pool, _ = codes_of(thread, device)
    # By pool and time: gaps of one device come in order of time.
    order = stable_order(pool)
    spans = Spans(
        device[order],
        parts.start_ns[known][order],
        parts.end_ns[known][order],
        ended_by[order],
        thread[order],
        pool[order],
    )
    calls, threads, count = calls.take(mine), threads[mine], count + 1
    return spans, Did(calls, threads, find_activities(calls, threads, count), count)
