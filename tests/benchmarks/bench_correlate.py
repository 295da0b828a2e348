"""Launches and executions joined on one core: a million of each with the driver's records, in rounds of 50,000.

CPU time of the one thread that does it, on one CPU; numpy starts no others for this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from otel_gpuflame.correlate.gpu.correlator import GRACE_NS, GpuCorrelator
from otel_gpuflame.correlate.gpu.join import Join
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.executions import (
    EXECUTION,
    ExecutionArray,
    Executions,
    ExecutionsBegin,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, Calls, CaptureStart, Event, Watermark
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from tests.benchmarks import figures
from tests.benchmarks.figures import Figure, figure

REPEAT: Final = 5
PAIRS: Final = 1_000_000
ROUND: Final = 50_000
SPACING_NS: Final = 1_000
"""Between launches: 1,000,000 a second, so that a round has 50 ms."""
MISSING: Final = 0.3
PASSED: Final = 100_000
AGENT_ROUND: Final = 2_500
AGENT_ROUNDS: Final = 2_000
_LATENCY_NS: Final = 5_000
_ROUND_NS: Final = ROUND * SPACING_NS
_PROCESS: Final = ProcessKey(1 << 23, 1_000_000)
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """What probes saw, and what the library recorded."""

    calls: CallArray
    records: ExecutionArray


def measure() -> list[Figure]:
    """Pairs per second for one and more threads, with a third missing, and of all that follows from them."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    one, many = rounds(threads=1), rounds(threads=8)
    missing = rounds(threads=8, missing=MISSING)
    kept, resident_bytes = _kept(missing)
    return [
        figure("join, 1 thread", [PAIRS / _joined_s(one) for _ in range(REPEAT)], "pairs/s"),
        figure("join, 8 threads", [PAIRS / _joined_s(many) for _ in range(REPEAT)], "pairs/s"),
        figure(
            "join, 30 % missing", [PAIRS / _joined_s(missing) for _ in range(REPEAT)], "pairs/s"
        ),
        *(
            Figure(name=f"30 % missing, kept at most: {n}", value=v, unit="rows")
            for n, v in kept.items()
        ),
        Figure(name="30 % missing: memory for it", value=resident_bytes / _MIB, unit="MiB"),
        *(
            Figure(
                name=f"30 % missing, the whole, after {n} million", value=each / _MIB, unit="MiB"
            )
            for n, each in enumerate(_held_bytes(), 1)
        ),
        figure(
            "and all that follows from it",
            [PAIRS / _told_s(many) for _ in range(REPEAT)],
            "pairs/s",
        ),
        figure("an event without executions", [_passed_ns() for _ in range(REPEAT)], "ns CPU"),
        figure(
            "a round of an agent without executions: added",
            [_added_ns() / 1e3 for _ in range(REPEAT)],
            "µs CPU",
        ),
    ]


def rounds(threads: int, missing: float = 0.0) -> list[Round]:
    """Launches of several threads in turn, each with a record and an execution; a share of each of the three lost."""
    random = np.random.default_rng(1)
    return [_round(begin, threads, missing, random) for begin in range(0, PAIRS, ROUND)]


def _round(begin: int, threads: int, missing: float, random: np.random.Generator) -> Round:
    index = np.arange(begin, begin + ROUND)
    return Round(
        _lost(_calls(index, threads), missing, random),
        np.concatenate(
            [
                _lost(_launches(index, threads), missing, random),
                _lost(_executions(index), missing, random),
            ]
        ),
    )


def _lost(rows: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    return rows[random.random(len(rows)) >= share] if share else rows


def _calls(index: np.ndarray, threads: int) -> CallArray:
    rows = np.zeros(len(index), wire.CALL)
    rows["start_ns"] = (index + 1) * SPACING_NS
    rows["tgid"], rows["process_start_ns"] = _PROCESS.tgid, _PROCESS.start_ns
    rows["tid"] = _PROCESS.tgid + index % threads
    rows["thread_pointer"] = _thread_pointers(index, threads)
    rows["stack_hash"][:, 0] = index % 10_000
    rows["api"], rows["kind"] = apis.BY_NAME["cuLaunchKernel"].id, wire.Kind.LAUNCH
    rows["stream"] = 0xA000 + index % threads
    return rows


def _launches(index: np.ndarray, threads: int) -> ExecutionArray:
    rows = _records(index, GpuKind.API, start_ns=100, duration_ns=600)
    rows["thread_pointer"] = _thread_pointers(index, threads)
    return rows


def _executions(index: np.ndarray) -> ExecutionArray:
    rows = _records(index, GpuKind.KERNEL, start_ns=_LATENCY_NS, duration_ns=900)
    rows["context_id"], rows["stream_id"], rows["name"] = 1, 7 + index % 8, index % 50
    return rows


def _records(index: np.ndarray, kind: GpuKind, start_ns: int, duration_ns: int) -> ExecutionArray:
    rows = np.zeros(len(index), EXECUTION)
    rows["start_ns"] = (index + 1) * SPACING_NS + start_ns
    rows["end_ns"] = rows["start_ns"] + np.uint64(duration_ns)
    # CUPTI counts calls of the runtime too.
    rows["correlation_id"], rows["kind"] = index * 3, kind
    rows["tgid"], rows["process_start_ns"] = _PROCESS.tgid, _PROCESS.start_ns
    return rows


def _thread_pointers(index: np.ndarray, threads: int) -> np.ndarray:
    return (0x7F00_0000_0000 + index % threads * 0x1000).astype(np.uint64)


def _joined_s(batches: Sequence[Round], join: Join | None = None) -> float:
    """CPU seconds to join all, decided as far behind the newest as the correlator does."""
    join = join or Join()
    complete_ns = np.array([FOREVER])
    begin_s = time.thread_time()
    for number, batch in enumerate(batches):
        join.add_calls(batch.calls, np.zeros(len(batch.calls), np.int32))
        join.add_records(batch.records, np.zeros(len(batch.records), np.int32), None)
        for cut_ns in join.cuts_ns((number + 1) * _ROUND_NS - GRACE_NS):
            join.settle(cut_ns, complete_ns)
    for cut_ns in join.cuts_ns(2 * PAIRS * SPACING_NS):
        join.settle(cut_ns, complete_ns)
    return time.thread_time() - begin_s


def _kept(batches: Sequence[Round]) -> tuple[dict[str, int], int]:
    """The most rows of each kind that were kept at the end of a round, and the memory that this took."""
    join, most = Join(), dict.fromkeys(Join().waiting, 0)
    before_bytes, most_bytes = _resident_bytes(), 0
    for number, batch in enumerate(batches):
        # Copies: what came from the source is freed when it is no longer needed.
        join.add_calls(batch.calls.copy(), np.zeros(len(batch.calls), np.int32))
        join.add_records(batch.records.copy(), np.zeros(len(batch.records), np.int32), None)
        for cut_ns in join.cuts_ns((number + 1) * _ROUND_NS - GRACE_NS):
            join.settle(cut_ns, np.array([FOREVER]))
        most = {name: max(most[name], count) for name, count in join.waiting.items()}
        most_bytes = max(most_bytes, _resident_bytes() - before_bytes)
    return most, most_bytes


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held_bytes() -> list[int]:
    """What the whole correlator has taken, at most, by the end of each of three million launches."""
    random, correlator = np.random.default_rng(1), GpuCorrelator()
    correlator.feed(ExecutionsBegin(_PROCESS, 0))
    before_bytes, most_bytes = _resident_bytes(), []
    for begin in range(0, 3 * PAIRS, ROUND):
        _feed(correlator, _round(begin, 8, MISSING, random), (begin + ROUND) * SPACING_NS)
        held_bytes = _resident_bytes() - before_bytes
        if begin % PAIRS == 0:
            most_bytes.append(held_bytes)
        most_bytes[-1] = max(most_bytes[-1], held_bytes)
    return most_bytes


def _told_s(batches: Sequence[Round]) -> float:
    """CPU seconds of the whole correlator."""
    correlator = GpuCorrelator()
    correlator.feed(ExecutionsBegin(_PROCESS, 0))
    begin_s = time.thread_time()
    for number, batch in enumerate(batches):
        _feed(correlator, batch, (number + 1) * _ROUND_NS)
    correlator.finish()
    return time.thread_time() - begin_s


def _feed(correlator: GpuCorrelator, batch: Round, now_ns: int) -> None:
    events: list[Event] = [Calls(batch.calls), Executions(batch.records)]
    for event in [*events, ExecutionWatermark(_PROCESS, now_ns), Watermark(now_ns)]:
        correlator.feed(event)


def _passed_ns() -> float:
    """CPU nanoseconds for an event while no process has executions."""
    correlator, event = GpuCorrelator(), Calls(np.empty(100, wire.CALL))
    begin_s = time.thread_time()
    for _ in range(PASSED):
        correlator.feed(event)
    return (time.thread_time() - begin_s) / PASSED * 1e9


def _added_ns() -> float:
    """CPU nanoseconds that correlation adds to a round of 2,500 calls while no process has executions."""
    calls = _calls(np.arange(AGENT_ROUND), 8)
    options = AggregateOptions(sampled=True)
    spent = []
    for stage in (CorrelatingAggregator(options), Aggregator(options)):
        stage.feed(CaptureStart(0, 0, ()))
        begin_s = time.thread_time()
        for _ in range(AGENT_ROUNDS):
            stage.feed(Calls(calls))
            stage.feed(Watermark(1))
        spent.append(time.thread_time() - begin_s)
    return (spent[0] - spent[1]) / AGENT_ROUNDS * 1e9


if __name__ == "__main__":
    figures.main(measure)
