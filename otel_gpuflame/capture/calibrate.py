"""What probes and CPU samples cost on this host without their programs: the way into the kernel and back."""

from __future__ import annotations

import os
import time
import zlib
from typing import Final

from otel_gpuflame.capture.bpf.backend import RingSizes
from otel_gpuflame.capture.bpf.drain import LIBRARY, Drain
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.perf_events import open_cpu_clock
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import file_offset_of
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ

_CALLS: Final = 2_000
_ROUNDS: Final = 15
_SAMPLE_PERIOD_NS: Final = 100_000
_WORK_BYTES: Final = 4 << 20
"""Checksums of so many bytes take about 2 ms: 20 samples."""
_SMALL_RINGS: Final = RingSizes(calls=4096, stacks=4096, names=4096, processes=4096)


def trap_cost_ns() -> float:
    """Nanoseconds a hit, from a function of our own with and without a probe, in turn. Takes about 0.1 s.

    We are no target, so that the program returns at once. The median of the differences, at least 0.
    """
    kernel = CaptureKernel(_SMALL_RINGS)
    drain = kernel.open_drain()
    try:
        offset = file_offset_of(LIBRARY, "ogf_drain_malformed")
        if offset is None:
            raise SourceUnavailable(f"{LIBRARY} lacks a symbol: run `make bpf`")
        point = ProbePoint(Program.CALL, offset, cookie=0)
        differences = []
        for _ in range(_ROUNDS):
            bare_ns = _time_calls(drain)
            kernel.uprobes.attach("own", LIBRARY, [point])
            probed_ns = _time_calls(drain)
            kernel.uprobes.detach("own")
            differences.append((probed_ns - bare_ns) / _CALLS)
        return max(sorted(differences)[_ROUNDS // 2], 0.0)
    finally:
        drain.close()
        kernel.close()


def sample_cost_ns() -> float:
    """Nanoseconds that one timer interrupt of a CPU sample takes from the thread it hits; 0 where the clock is refused.

    Checksums with and without 10,000 interrupts a second, in turn: the median of the differences, at least 0. Takes
    about 60 ms. In virtual machines a timer costs far more than its program: the hypervisor has a part in each.
    """
    work = bytes(_WORK_BYTES)
    differences = []
    for _ in range(_ROUNDS):
        bare_ns = _time_checksum(work)
        try:
            clock = open_cpu_clock(_SAMPLE_PERIOD_NS)
        except LibbpfError:
            return 0.0
        try:
            sampled_ns = _time_checksum(work)
        finally:
            os.close(clock)
        differences.append((sampled_ns - bare_ns) / (sampled_ns / _SAMPLE_PERIOD_NS))
    return max(sorted(differences)[_ROUNDS // 2], 0.0)


def sampling_share() -> float:
    """Share of a busy thread's time that CPU samples take, their program apart."""
    return CPU_SAMPLES_HZ * sample_cost_ns() / 1e9


def _time_checksum(work: bytes) -> int:
    started_ns = time.perf_counter_ns()
    zlib.crc32(work)
    return time.perf_counter_ns() - started_ns


def _time_calls(drain: Drain) -> int:
    started_ns = time.perf_counter_ns()
    for _ in range(_CALLS):
        drain.malformed(0)
    return time.perf_counter_ns() - started_ns
