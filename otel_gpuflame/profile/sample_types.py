"""The registry of sample types: nothing else spells their names. Order is display order, the headline first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.profile.model import ValueType

GPU_WAIT: Final = ValueType("gpu_wait", "nanoseconds")
"""CPU time inside driver calls that block on the GPU."""

GPU_TIME: Final = ValueType("gpu_time", "nanoseconds")
"""Execution on devices, by what launched it."""

GPU_QUEUE: Final = ValueType("gpu_queue", "nanoseconds")
"""Time between a launch, or the end of the work before it on its stream, and the start of the execution."""

GPU_IDLE: Final = ValueType("gpu_idle", "nanoseconds")
"""Time in which a device had nothing to do, by what the thread that ended it did meanwhile."""

GPU_LAUNCH: Final = ValueType("gpu_launch", "count")
"""Submissions: kernels, graphs, copies, sets."""

GPU_COPY: Final = ValueType("gpu_copy", "bytes")
"""Bytes that the program asked the GPU to copy."""

GPU_DRIVER: Final = ValueType("gpu_driver", "nanoseconds")
"""Time inside system calls on GPU devices."""

OFF_CPU: Final = ValueType("off_cpu", "nanoseconds")
"""Time that threads were off the CPU, 1 ms and more at a time. Named as the OpenTelemetry eBPF profiler does."""

CPU_SAMPLES: Final = ValueType("samples", "count")
"""On-CPU samples. Name and period make backends show them as their usual CPU profile (Pyroscope: process_cpu)."""

SCOPE: Final = "otel_gpuflame"
"""Scope of exact values; scaled ones get a scope of their own and never share a profile with these."""

ESTIMATED_SCOPE: Final = "otel_gpuflame/estimated"
ESTIMATED_ATTRIBUTE: Final = "otel_gpuflame.estimated"
PROBABILITY_ATTRIBUTE: Final = "otel_gpuflame.sampling.probability"
"""Profile attribute of estimates: with which chance any instant was covered."""
RELATIVE_ERROR_ATTRIBUTE: Final = "otel_gpuflame.sampling.relative_standard_error"
"""Profile attribute of estimates: standard error of the total over the last strata, as a share of it; inf at first."""

OF_CALLS: Final = (GPU_WAIT, GPU_LAUNCH, GPU_COPY)
"""What calls of the driver library give: always captured."""
OF_DEVICES: Final = (GPU_TIME, GPU_QUEUE, GPU_IDLE)
"""What executions give."""
ALL: Final = (GPU_WAIT, *OF_DEVICES, GPU_LAUNCH, GPU_COPY, GPU_DRIVER, OFF_CPU, CPU_SAMPLES)
"""In display order."""
HEADLINE: Final = GPU_WAIT

GPU_VIEW: Final = ValueType("gpu", "nanoseconds")
"""No measure of its own: all that is above, up to `gpu_idle`, in one flame graph (`profile.view`). Not exported."""
SHOWN: Final = (*ALL, GPU_VIEW)
"""What one can ask to see."""


@dataclass(frozen=True, slots=True)
class Period:
    """How often a profile's events are taken: one every `value` of `type`."""

    type: ValueType
    value: int


_EVERY_EVENT: Final = Period(ValueType("gpu", "nanoseconds"), 1)
CPU_PERIOD: Final = Period(ValueType("cpu", "nanoseconds"), 1_000_000_000 // CPU_SAMPLES_HZ)
"""10,101,010 ns, as the kernel computes it too: what one sample stands for."""


def period(sample_type: ValueType) -> Period | None:
    """The period of profiles of a type.

    Pyroscope takes the name of a profile from its period type, and knows off-CPU profiles by having none.
    """
    if sample_type == CPU_SAMPLES:
        return CPU_PERIOD
    return None if sample_type == OFF_CPU else _EVERY_EVENT


def by_name(name: str) -> ValueType:
    """The sample type called `name`; raises KeyError naming those that exist."""
    for sample_type in SHOWN:
        if sample_type.type == name:
            return sample_type
    raise KeyError(f"no sample type {name!r}; there are: {', '.join(t.type for t in SHOWN)}")
