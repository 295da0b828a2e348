"""Samples of what threads did besides calling the driver library."""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.model import Link
from otel_gpuflame.profile.sample_types import CPU_SAMPLES, GPU_DRIVER, OFF_CPU
from otel_gpuflame.profile.samples import SampleTable

THREAD_KINDS: Final = frozenset({int(Kind.CPU_SAMPLE), int(Kind.OFF_CPU), int(Kind.DRIVER)})


class ThreadKey(NamedTuple):
    """What a group of such events has in common; `mode` and `subject` as in `correlate.threads`."""

    kind: int
    api_id: int
    mode: int
    subject: int


def add_thread_time(
    table: SampleTable,
    key: ThreadKey,
    base: tuple[int, ...],
    link: Link | None,
    value: int,
) -> None:
    """Add a group of events of THREAD_KINDS over the captured stack `base`: samples, or nanoseconds of the others."""
    if key.kind == Kind.CPU_SAMPLE:
        # A stack without any frame would be no stack at all.
        stack = base or table.indexes((labels.NO_FRAMES,))
        table.add(CPU_SAMPLES, stack, link, value)
    elif key.kind == Kind.OFF_CPU:
        stack = base + table.indexes((labels.off_cpu_frame(key.mode),))
        table.add(OFF_CPU, stack, link, value)
    else:
        leaf = labels.device_call_frame(key.api_id, key.subject, key.mode)
        stack = base + table.indexes((labels.call_frame(key.api_id), leaf))
        table.add(GPU_DRIVER, stack, link, value)
