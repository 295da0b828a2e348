"""The whole road under load: BPF writes 1,000,000 calls/s, we drain and aggregate, while windows are being encoded.

Real are the rings, the drain thread, the rounds of the live source (LiveCapture.step) and the aggregator with its 10 s
windows. A window of 10,000 stacks is encoded meanwhile, as the agent does it: OTLP in the encoding process, gzip in the
thread that exports. As often as a window closes, and without pause. Stacks are announced before the clock starts: that
10,000 new ones must be symbolised is a matter of the first seconds, not of rate.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.backend import RingSizes
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.events.records import CallArray, Calls, Event, Stacks
from otel_gpuflame.pipeline.encoding import EncodingProcess
from otel_gpuflame.profile.aggregate import Aggregator
from otel_gpuflame.profile.model import Bundle
from tests.benchmarks import figures, flood, workload
from tests.benchmarks.figures import Figure

RATE_PER_S: Final = 1_000_000
SECONDS: Final = 12.0
CALL_RING_BYTES: Final = 64 << 20
OTLP_GZIP_LEVEL: Final = 1
"""As the OTLP/HTTP exporter."""
WINDOW_S: Final = 10.0
_STEP_NS: Final = 50_000_000


class _Recorder(LiveCapture):
    """The live source, whose rings another process may write to."""

    def map_fds(self) -> dict[str, int]:
        """File descriptors of the maps that the producer shares."""
        assert isinstance(self._kernel, CaptureKernel)
        return {name: self._kernel.object.map_fd(name) for name in flood.SHARED_MAPS}


@dataclass(slots=True)
class _Load:
    """What the recorder's loop saw. Calls are numbered: a gap is a loss."""

    received: int = 0
    missing: int = 0
    largest_round: int = 0
    longest_round_s: float = 0.0
    cpu_s: float = 0.0

    def take(self, rows: CallArray) -> None:
        """Check the numbers of a batch. Raises RuntimeError if a call comes twice or out of order."""
        numbers = rows["stream"].astype(np.int64)
        gaps = np.diff(numbers, prepend=self.received + self.missing - 1) - 1
        if (gaps < 0).any():
            raise RuntimeError("calls arrived twice or out of order")
        self.missing += int(gaps.sum())
        self.received += len(numbers)


@dataclass(slots=True)
class _Encoder:
    """Encodes one window again and again in a thread, with a pause in between, until stopped."""

    window: Bundle
    pause_s: float
    encode: EncodingProcess = field(default_factory=EncodingProcess)
    stopping: threading.Event = field(default_factory=threading.Event)
    rounds: int = 0
    cpu_s: float = 0.0

    def run(self) -> None:
        """The thread."""
        begin_s = time.thread_time()
        while not self.stopping.is_set():
            for encoded in self.encode([self.window], dropped=Counter()):
                gzip.compress(encoded.request.SerializeToString(), OTLP_GZIP_LEVEL)
            self.rounds += 1
            self.cpu_s = time.thread_time() - begin_s
            self.stopping.wait(self.pause_s)


def measure() -> list[Figure]:
    """Both loads, one after the other."""
    flood.build()
    return [
        *_under_load("a window every 10 s", WINDOW_S),
        *_under_load("windows without pause", 0.0),
    ]


def _under_load(name: str, pause_s: float) -> list[Figure]:
    aggregator, load = Aggregator(), _Load()
    encoder = _Encoder(workload.window(), pause_s)
    recorder = _Recorder(LiveOptions(rings=RingSizes(calls=CALL_RING_BYTES)))
    with recorder, _producer(recorder) as producer:
        _prepare(recorder, aggregator)
        before_mib = _resident_mib("VmRSS")
        _forget_peak()
        thread = threading.Thread(target=encoder.run)
        process_cpu_s, begin_s = time.process_time(), time.monotonic()
        children_cpu_s = _children_cpu_s()
        thread.start()
        try:
            produced = _receive(recorder, aggregator, load, producer)
        finally:
            wall_s = time.monotonic() - begin_s
            encoder.stopping.set()
            thread.join()
            encoder.encode.close()
            for child in multiprocessing.active_children():
                child.join()
            producer.kill()
        drain_cpu_s = time.process_time() - process_cpu_s - load.cpu_s - encoder.cpu_s
    aggregator.finish()
    cpu = {
        "live source and aggregation": load.cpu_s,
        "drain": drain_cpu_s,
        "sending thread": encoder.cpu_s,
        "encoding process": _children_cpu_s() - children_cpu_s - produced["process_cpu_s"],
        "producer": produced["cpu_s"],
    }
    lost = int(produced["written"]) - load.received
    counted = _ring_full(aggregator)
    found = [
        Figure(name="written", value=produced["written"] / produced["wall_s"], unit="calls/s"),
        Figure(
            name="lost", value=lost, unit="calls", note=f"by number; {counted:,} counted by BPF"
        ),
        Figure(
            name="profiled",
            value=sum(aggregator.ledger.profiled.values()),
            unit="calls",
            note=f"of {int(produced['written']):,}",
        ),
        Figure(name="windows encoded", value=encoder.rounds, unit="windows"),
        Figure(name="most calls in a round", value=load.largest_round, unit="calls"),
        Figure(name="longest round", value=load.longest_round_s * 1e3, unit="ms"),
        *(
            Figure(name=f"CPU, {part}", value=100 * seconds / wall_s, unit="%", note="of one core")
            for part, seconds in cpu.items()
        ),
        Figure(name="resident before", value=before_mib, unit="MiB"),
        Figure(name="resident at most", value=_resident_mib("VmHWM"), unit="MiB"),
    ]
    return [
        Figure(name=f"{name}: {each.name}", value=each.value, unit=each.unit, note=each.note)
        for each in found
    ]


def _producer(recorder: _Recorder) -> subprocess.Popen[str]:
    map_fds = recorder.map_fds()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.benchmarks.flood", str(RATE_PER_S), str(SECONDS)),
            *(f"{name}={fd}" for name, fd in map_fds.items()),
        ],
        cwd=flood.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=tuple(map_fds.values()),
        text=True,
        bufsize=1,
    )


def _prepare(recorder: LiveCapture, aggregator: Aggregator) -> None:
    """Take in the stacks that the producer announces; it knows no frames, so these are filled in here."""
    aggregator.feed(recorder.start_event())
    arrived = 0
    deadline_s = time.monotonic() + 30
    while arrived < workload.STACKS:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{arrived} of {workload.STACKS} stacks arrived")
        events = recorder.step(_STEP_NS)
        arrived += sum(len(event.stacks) for event in events if isinstance(event, Stacks))
    for event in (workload.stacks(), workload.names(), workload.targets()):
        aggregator.feed(event)


def _receive(
    recorder: LiveCapture, aggregator: Aggregator, load: _Load, producer: subprocess.Popen[str]
) -> dict[str, float]:
    """The recorder's loop, until the producer has ended and everything has arrived."""
    assert producer.stdin is not None
    assert producer.stdout is not None
    begin_s = time.thread_time()
    producer.stdin.write("go\n")
    while producer.poll() is None:
        round_begin_s, received = time.monotonic(), load.received
        _take(recorder.step(_STEP_NS), aggregator, load)
        load.largest_round = max(load.largest_round, load.received - received)
        load.longest_round_s = max(load.longest_round_s, time.monotonic() - round_begin_s)
    _take(recorder.finish(), aggregator, load)
    load.cpu_s = time.thread_time() - begin_s
    produced: dict[str, float] = json.loads(producer.stdout.readline())
    return produced


def _take(events: list[Event], aggregator: Aggregator, load: _Load) -> None:
    for event in events:
        if isinstance(event, Calls):
            load.take(event.rows)
        aggregator.feed(event)


def _ring_full(aggregator: Aggregator) -> int:
    accounts = aggregator.ledger.accounts()
    return sum(n for each in accounts for reason, n in each.dropped if reason == "ring_full")


def _children_cpu_s() -> float:
    """CPU seconds of child processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _forget_peak() -> None:
    """Have VmHWM start from now (Documentation/filesystems/proc.rst)."""
    Path("/proc/self/clear_refs").write_text("5")


def _resident_mib(field_name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field_name)


if __name__ == "__main__":
    figures.main(measure)
