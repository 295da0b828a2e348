"""What joined executions mean, on one core: each step of it over a million executions.

CPU time of the one thread that does it, on one CPU; numpy starts no others for this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.backpressure import explain_backpressure
from otel_gpuflame.correlate.gpu.coverage import UNKNOWN
from otel_gpuflame.correlate.gpu.idle import explain_idle
from otel_gpuflame.correlate.gpu.legacy import find_defaults
from otel_gpuflame.correlate.gpu.marks import find_marks
from otel_gpuflame.correlate.gpu.queue import explain_queue
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, by_device
from otel_gpuflame.correlate.gpu.scopes import find_scopes
from otel_gpuflame.correlate.gpu.streams import EMPTY, learn
from otel_gpuflame.correlate.gpu.timeline import busy_intervals, find_gaps
from otel_gpuflame.correlate.gpu.waits import explain_waits
from otel_gpuflame.correlate.gpu.work import arrange
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from tests.benchmarks import figures
from tests.benchmarks.figures import Figure, figure

REPEAT: Final = 3
EXECUTIONS: Final = 1_000_000
CALLS: Final = 100_000
"""Waits, and as many marks, samples, times off the CPU and overhead records."""
STREAMS: Final = 8
THREADS: Final = 4
SPACING_NS: Final = 1_000
LAST_NS: Final = EXECUTIONS * SPACING_NS


def measure() -> list[Figure]:
    """Milliseconds of CPU for each step."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows, calls = executions(), calls_of_threads()
    overhead, launches = overhead_records(), long_launches()
    table = learn(EMPTY, rows)
    work = arrange(rows, table)
    defaults = find_defaults(work, table)
    marks = find_marks(calls, work, table)
    waits = calls[calls["kind"] == Kind.WAIT]
    scopes = find_scopes(waits, work, table, defaults, marks)
    busy = busy_intervals(rows)
    gaps, _ = find_gaps(busy, np.array([0], np.uint32), 0, LAST_NS)
    steps: dict[str, Callable[[], object]] = {
        "learn streams": lambda: learn(table, rows),
        "arrange by stream": lambda: arrange(rows, table),
        "default streams": lambda: find_defaults(work, table),
        "events and stream waits": lambda: find_marks(calls, work, table),
        "what waits wait for": lambda: find_scopes(waits, work, table, defaults, marks),
        "waits": lambda: explain_waits(waits, work, scopes, np.zeros(len(waits), np.bool_)),
        "queue": lambda: explain_queue(work, busy, marks),
        "busy and gaps": lambda: find_gaps(
            busy_intervals(rows), np.array([0], np.uint32), 0, LAST_NS
        ),
        "idle": lambda: explain_idle(gaps, rows, calls, np.zeros(0, UNKNOWN)),
        "back-pressure": lambda: explain_backpressure(overhead, launches, work, table),
    }
    return [figure(name, _times(step), "ms CPU") for name, step in steps.items()]


def _times(step: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(REPEAT):
        begin_s = time.thread_time()
        step()
        times.append((time.thread_time() - begin_s) * 1e3)
    return times


def executions() -> JoinedArray:
    """On 8 streams in turn, launched by 4 threads, with a gap after each."""
    place = np.arange(EXECUTIONS)
    stream = place % STREAMS
    rows = np.zeros(EXECUTIONS, JOINED)
    rows["start_ns"] = place * SPACING_NS + 10_000
    rows["end_ns"] = rows["start_ns"] + 600
    rows["launch_start_ns"] = place * SPACING_NS
    rows["launch_end_ns"] = rows["launch_start_ns"] + 900
    rows["tgid"] = rows["process_start_ns"] = 1
    rows["tid"] = stream % THREADS
    rows["stream"] = (stream + 16) << 12
    rows["stream_id"], rows["context_id"], rows["device"] = stream + 16, 1, 0
    rows["kind"], rows["api"] = GpuKind.KERNEL, apis.BY_NAME["cuLaunchKernel"].id
    rows["launch_kind"] = Kind.LAUNCH
    return by_device(rows)


def calls_of_threads() -> CallArray:
    """Waits for streams and for the context, events, samples and times off the CPU."""
    random = np.random.default_rng(1)
    rows = np.zeros(4 * CALLS, wire.CALL)
    kinds = np.repeat([Kind.WAIT, Kind.EVENT_RECORD, Kind.CPU_SAMPLE, Kind.OFF_CPU], CALLS)
    rows["kind"] = kinds
    rows["start_ns"] = np.tile(np.arange(CALLS), 4) * (LAST_NS // CALLS)
    rows["tgid"] = rows["process_start_ns"] = 1
    rows["tid"] = random.integers(0, THREADS, len(rows))
    rows["stream"] = (random.integers(0, STREAMS, len(rows)) + 16) << 12
    rows["object"] = random.integers(1, 100, len(rows))
    has_end = (kinds == Kind.WAIT) | (kinds == Kind.OFF_CPU)
    rows["end_ns"][has_end] = rows["start_ns"][has_end] + 20_000
    rows["flags"][has_end] = CallFlag.RETURNED
    waits = np.flatnonzero(kinds == Kind.WAIT)
    names = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
    rows["api"][waits] = np.resize([apis.BY_NAME[name].id for name in names], len(waits))
    marks = np.flatnonzero(kinds == Kind.EVENT_RECORD)
    rows["kind"][marks[::2]] = Kind.STREAM_WAIT
    return rows


def overhead_records() -> ExecutionArray:
    """Launches that were held back."""
    rows = np.zeros(CALLS, EXECUTION)
    rows["kind"], rows["detail"] = GpuKind.OVERHEAD, 6
    rows["tgid"] = rows["process_start_ns"] = 1
    rows["start_ns"] = np.arange(CALLS) * (LAST_NS // CALLS) + 100
    rows["end_ns"] = rows["start_ns"] + 500
    return rows


def long_launches() -> CallArray:
    """Those that were held back."""
    rows = np.zeros(CALLS, wire.CALL)
    rows["start_ns"] = np.arange(CALLS) * (LAST_NS // CALLS)
    rows["end_ns"] = rows["start_ns"] + 900
    rows["tgid"] = rows["process_start_ns"] = 1
    rows["stream"] = (np.arange(CALLS) % STREAMS + 16) << 12
    return rows


if __name__ == "__main__":
    figures.main(measure)
