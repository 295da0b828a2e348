"""Decode, correlate and aggregate on one core: bytes of a drained ring to the groups of a window.

CPU time of the one thread that does it, on one CPU; numpy starts no others for this.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.records import Calls, CaptureStart, Event
from otel_gpuflame.profile.aggregate import Aggregator
from tests.benchmarks import figures, workload
from tests.benchmarks.figures import Figure, figure

REPEAT: Final = 10
CALLS_A_REPEAT: Final = 500_000
CALL_SPACING_NS: Final = 1_000
LARGE: Final = 50_000
"""Calls of one round (50 ms) at 1,000,000 calls/s."""
SMALL: Final = 2_500
"""Calls of one round at 50,000 calls/s: a busy training process."""


def measure() -> list[Figure]:
    """Calls per second for batches of several sizes and mixes, and what closing the window costs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    large = _batches(LARGE)
    before = _preparation()
    return [
        _rate("batches of 50,000", large, before),
        _rate("batches of 2,500", _batches(SMALL), before),
        _rate("batches of 50,000, every stack in every span", _mixed_spans(large), before),
        _closing("closing a window of 10,000 groups", large, before),
        _writer_rate(large),
    ]


def _batches(size: int) -> list[NDArray[np.uint8]]:
    """CALLS_A_REPEAT calls of random stacks, as bytes in batches of `size`."""
    random = np.random.default_rng(1)
    stacks = random.integers(0, workload.STACKS, CALLS_A_REPEAT)
    rows = workload.calls(stacks, 0, CALL_SPACING_NS)
    return [rows[i : i + size].view(np.uint8) for i in range(0, len(rows), size)]


def _mixed_spans(batches: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """The same calls, each for a random span: as many groups as there are pairs of stack and span."""
    random = np.random.default_rng(2)
    mixed = [batch.copy() for batch in batches]
    for batch in mixed:
        rows = batch.view(wire.CALL)
        spans = random.integers(0, workload.SPANS, len(rows)).astype(np.uint64)
        workload.put_spans(rows, spans)
    return mixed


def _preparation() -> list[Event]:
    """What comes before the first call."""
    start = CaptureStart(time_ns=0, unix_offset_ns=0, attributes=())
    return [start, workload.stacks(), workload.names(), workload.targets()]


def _fed(batches: Sequence[NDArray[np.uint8]], before: Sequence[Event]) -> tuple[Aggregator, float]:
    """An aggregator that has taken in all batches, and the CPU seconds of these."""
    aggregator = Aggregator()
    for event in before:
        aggregator.feed(event)
    begin_s = time.thread_time()
    for batch in batches:
        # What the live source does with a buffer of the drain, which is only lent.
        aggregator.feed(Calls(batch.copy().view(wire.CALL)))
    return aggregator, time.thread_time() - begin_s


def _rate(name: str, batches: Sequence[NDArray[np.uint8]], before: Sequence[Event]) -> Figure:
    rates = [CALLS_A_REPEAT / _fed(batches, before)[1] for _ in range(REPEAT)]
    return figure(name, rates, "calls/s")


def _closing(name: str, batches: Sequence[NDArray[np.uint8]], before: Sequence[Event]) -> Figure:
    times = []
    for _ in range(REPEAT):
        aggregator, _ = _fed(batches, before)
        begin_s = time.thread_time()
        aggregator.finish()
        times.append((time.thread_time() - begin_s) * 1e3)
    return figure(name, times, "ms CPU")


def _writer_rate(batches: Sequence[NDArray[np.uint8]]) -> Figure:
    """What `record -o` does beside aggregating: columns, delta, byte shuffle and zstd, written to nowhere."""
    with open(os.devnull, "wb", buffering=0) as sink:
        writer = CaptureWriter(sink, created={})
        rates = []
        for _ in range(REPEAT):
            begin_s = time.thread_time()
            for batch in batches:
                writer.write(Calls(batch.view(wire.CALL)))
            rates.append(CALLS_A_REPEAT / (time.thread_time() - begin_s))
        writer.close()
    return figure("writing a capture file instead", rates, "calls/s")


if __name__ == "__main__":
    figures.main(measure)
