"""What a probe costs on this host without its program: the trap into the kernel and back."""

from __future__ import annotations

import time
from typing import Final

from otel_gpuflame.capture.bpf.backend import RingSizes
from otel_gpuflame.capture.bpf.drain import LIBRARY, Drain
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import file_offset_of
from otel_gpuflame.errors import SourceUnavailable

_CALLS: Final = 2_000
_ROUNDS: Final = 15
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


def _time_calls(drain: Drain) -> int:
    started_ns = time.perf_counter_ns()
    for _ in range(_CALLS):
        drain.malformed(0)
    return time.perf_counter_ns() - started_ns
