"""The whole road under load: BPF writes 1,000,000 calls/s, we drain and aggregate, while windows are being encoded.

Real are the rings, the drain thread, one round of the live source (LiveCapture.step) and the aggregator with its
10 s windows. Stacks are announced before the clock starts: that 10,000 new ones must be symbolised is a matter of the
first seconds, not of rate.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.kernel import RingSizes
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.events.records import CallArray, Calls, Event, Stacks
from otel_gpuflame.profile.aggregate import Aggregator
from otel_gpuflame.profile.model import Bundle
from tests.benchmarks import figures, flood, workload
from tests.benchmarks.figures import Figure

RATE_PER_S: Final = 1_000_000
SECONDS: Final = 12.0
CALL_RING_BYTES: Final = 64 << 20
_STEP_NS: Final = 50_000_000
_GZIP_LEVEL: Final = 6


class _Recorder(LiveCapture):
    """The live source, whose rings another process may write to."""

    def map_fds(self) -> dict[str, int]:
        """File descriptors of the maps that the producer shares."""
        return {name: self._kernel.object.map_fd(name) for name in flood.SHARED_MAPS}


@dataclass(slots=True)
class _Sequence:
    """Checks that the calls arrive as they were numbered."""

    received: int = 0
    missing: int = 0

    def take(self, rows: CallArray) -> None:
        numbers = rows["stream"].astype(np.int64)
        expected = self.received + self.missing
        gaps = np.diff(numbers, prepend=expected - 1) - 1
        if (gaps < 0).any():
            raise RuntimeError("calls arrived twice or out of order")
        self.missing += int(gaps.sum())
        self.received += len(numbers)


@dataclass(slots=True)
class _Encoder:
    """Encodes one window again and again in a thread, until stopped."""

    window: Bundle
    stopping: threading.Event = field(default_factory=threading.Event)
    rounds: int = 0
    cpu_s: float = 0.0

    def run(self) -> None:
        begin_s = time.thread_time()
        while not self.stopping.is_set():
            for request in encode_otlp([self.window]):
                gzip.compress(request.SerializeToString(), _GZIP_LEVEL)
            encode_pprof([self.window])
            self.rounds += 1
        self.cpu_s = time.thread_time() - begin_s


@dataclass(slots=True)
class _Load:
    """What the recorder's loop saw."""

    sequence: _Sequence = field(default_factory=_Sequence)
    largest_batch: int = 0
    longest_round_s: float = 0.0
    windows: int = 0
    cpu_s: float = 0.0


def measure(seconds: float = SECONDS, rate_per_s: int = RATE_PER_S) -> list[Figure]:
    """Run the load once."""
    flood.build()
    aggregator, load = Aggregator(), _Load()
    stacks = workload.stacks()
    encoder = _Encoder(workload.window())
    recorder = _Recorder(LiveOptions(rings=RingSizes(calls=CALL_RING_BYTES)))
    with recorder:
        producer = _start_producer(recorder.map_fds(), rate_per_s, seconds)
        # The producer has announced its stacks; what it knows nothing of, their frames, is filled in here.
        announced = [e for e in recorder.step(0) if isinstance(e, Stacks)]
        if sum(len(each.stacks) for each in announced) != workload.STACKS:
            raise RuntimeError("not every stack arrived")
        for event in (recorder.start_event(), stacks, workload.names(), workload.targets()):
            aggregator.feed(event)
        before_kib = _resident_kib("VmRSS")
        thread = threading.Thread(target=encoder.run)
        process_cpu_s, begin_s = time.process_time(), time.monotonic()
        thread.start()
        try:
            produced = _receive(recorder, aggregator, load, producer)
        finally:
            wall_s = time.monotonic() - begin_s
            encoder.stopping.set()
            thread.join()
            producer.kill()
        drain_cpu_s = time.process_time() - process_cpu_s - load.cpu_s - encoder.cpu_s
    ring_full = sum(
        account_count
        for account in aggregator.ledger.accounts()
        for reason, account_count in account.dropped
        if reason == "ring_full"
    )
    share = f"of one core over {wall_s:.1f} s"
    return [
        Figure(
            name="written by BPF", value=produced["written"] / produced["wall_s"], unit="calls/s"
        ),
        Figure(name="received", value=load.sequence.received, unit="calls"),
        Figure(
            name="lost",
            value=produced["written"] - load.sequence.received,
            unit="calls",
            note=f"by number; {load.sequence.missing} gaps, {ring_full} by BPF's counters",
        ),
        Figure(name="profiled", value=sum(aggregator.ledger.profiled.values()), unit="calls"),
        Figure(name="windows closed", value=load.windows, unit="bundles"),
        Figure(name="windows encoded meanwhile", value=encoder.rounds, unit="windows"),
        Figure(name="largest batch", value=load.largest_batch, unit="calls"),
        Figure(name="longest round", value=load.longest_round_s * 1e3, unit="ms"),
        Figure(
            name="CPU, live source and aggregation",
            value=100 * load.cpu_s / wall_s,
            unit="%",
            note=share,
        ),
        Figure(name="CPU, drain thread", value=100 * drain_cpu_s / wall_s, unit="%", note=share),
        Figure(
            name="CPU, encoding thread", value=100 * encoder.cpu_s / wall_s, unit="%", note=share
        ),
        Figure(name="CPU, producer", value=100 * produced["cpu_s"] / wall_s, unit="%", note=share),
        Figure(
            name="longest pause of the producer", value=produced["longest_pause_s"] * 1e3, unit="ms"
        ),
        Figure(name="resident before", value=before_kib / 1024, unit="MiB"),
        Figure(name="resident at most", value=_resident_kib("VmHWM") / 1024, unit="MiB"),
    ]


def _start_producer(
    map_fds: dict[str, int], rate_per_s: float, seconds: float
) -> subprocess.Popen[str]:
    producer = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.benchmarks.flood", str(rate_per_s), str(seconds)),
            *(f"{name}={fd}" for name, fd in map_fds.items()),
        ],
        cwd=flood.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=tuple(map_fds.values()),
        text=True,
    )
    assert producer.stdout is not None
    if not producer.stdout.readline():
        raise RuntimeError("the producer did not start")
    return producer


def _receive(
    recorder: LiveCapture, aggregator: Aggregator, load: _Load, producer: subprocess.Popen[str]
) -> dict[str, float]:
    """The recorder's loop, until the producer has ended and everything has arrived."""
    assert producer.stdin is not None
    assert producer.stdout is not None
    begin_s = time.thread_time()
    producer.stdin.write("go\n")
    producer.stdin.flush()
    while producer.poll() is None:
        round_begin_s = time.monotonic()
        _take(recorder.step(_STEP_NS), aggregator, load)
        load.longest_round_s = max(load.longest_round_s, time.monotonic() - round_begin_s)
    _take(recorder.finish(), aggregator, load)
    load.cpu_s = time.thread_time() - begin_s
    load.windows += len(aggregator.finish())
    produced: dict[str, float] = json.loads(producer.stdout.readline())
    return produced


def _take(events: list[Event], aggregator: Aggregator, load: _Load) -> None:
    for event in events:
        if isinstance(event, Calls):
            load.sequence.take(event.rows)
            load.largest_batch = max(load.largest_batch, len(event.rows))
        load.windows += len(aggregator.feed(event))


def _resident_kib(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1])
    raise KeyError(field_name)


if __name__ == "__main__":
    figures.main(measure)
