"""Encoding one window: 10,000 distinct stacks of 40 frames, a sample of each of 3 types for every stack, 100 spans."""

from __future__ import annotations

import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.encode.pprof import build_pprof, compress
from otel_gpuflame.profile.model import Bundle
from tests.benchmarks import figures, workload
from tests.benchmarks.figures import Figure, figure

REPEAT: Final = 6
OTLP_GZIP_LEVEL: Final = 1
"""As the OTLP/HTTP exporter; the pprof encoder has its own."""

T = TypeVar("T")
U = TypeVar("U")


class _Stopwatch:
    """CPU milliseconds of steps, by name."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def run(self, step: str, work: Callable[[T], U], argument: T) -> U:
        """The result of a step, whose time is noted."""
        begin_s = time.thread_time()
        result = work(argument)
        self.times[step].append((time.thread_time() - begin_s) * 1e3)
        return result


def measure() -> list[Figure]:
    """Encode the same window again and again; CPU milliseconds and bytes of each step."""
    window = workload.window()
    clock = _Stopwatch()
    for _ in range(REPEAT):
        sizes = _encode(window, clock)
    return [
        Figure(name="frames", value=len(window.frames), unit="distinct"),
        Figure(name="samples", value=sum(len(p.value) for p in window.profiles), unit="samples"),
        *(figure(step, times, "ms CPU") for step, times in clock.times.items()),
        *(Figure(name=name, value=value, unit=unit) for (name, unit), value in sizes.items()),
    ]


def _encode(window: Bundle, clock: _Stopwatch) -> dict[tuple[str, str], int]:
    """Once by each encoder; counts and sizes by name and unit."""
    requests = clock.run("OTLP: build", encode_otlp, [window])
    bodies = clock.run("OTLP: serialise", _serialise, requests)
    zipped = clock.run("OTLP: gzip", _gzip, bodies)
    profile = clock.run("pprof: build", build_pprof, [window])
    raw = clock.run("pprof: serialise", type(profile).SerializeToString, profile)
    file = clock.run("pprof: gzip", compress, raw)
    return {
        ("OTLP: requests", "requests"): len(requests),
        ("OTLP: size", "bytes"): sum(map(len, bodies)),
        ("OTLP: size after gzip", "bytes"): sum(map(len, zipped)),
        ("pprof: size", "bytes"): len(raw),
        ("pprof: size after gzip", "bytes"): len(file),
    }


def _serialise(requests: Sequence[ExportProfilesServiceRequest]) -> list[bytes]:
    return [request.SerializeToString() for request in requests]


def _gzip(bodies: Sequence[bytes]) -> list[bytes]:
    return [gzip.compress(body, OTLP_GZIP_LEVEL) for body in bodies]


if __name__ == "__main__":
    figures.main(measure)
