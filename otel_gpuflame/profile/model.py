"""What is exported: profiles of one target in one window, independent of any output format.

Tables are shared by all profiles of a bundle and samples are columns, because a window holds tens of thousands of
samples over the same stacks and every encoder would otherwise hash each frame again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.executions import DeviceInfo
from otel_gpuflame.events.frames import Frame

AttributeSet = tuple[tuple[str, str | int], ...]
"""Attributes sorted by key; keys are unique."""


class Link(NamedTuple):
    """The span a sample belongs to: 16-byte trace id, 8-byte span id."""

    trace_id: bytes
    span_id: bytes


class ValueType(NamedTuple):
    """Name and unit of a value, as pprof and OTLP write them."""

    type: str
    unit: str


@dataclass(frozen=True, slots=True)
class Window:
    """The interval that a profile covers, unix nanoseconds, end exclusive."""

    start_unix_ns: int
    end_unix_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the window in nanoseconds."""
        return self.end_unix_ns - self.start_unix_ns


@dataclass(frozen=True, slots=True)
class Profile:
    """Samples of one type. Columns have equal length; a (stack, link, attributes) triple occurs once.

    `stack`, `link`, `attributes` index the tables of the bundle; `link` is -1 where the sample has no span.
    """

    sample_type: ValueType
    stack: NDArray[np.int32]
    link: NDArray[np.int32]
    attributes: NDArray[np.int32]
    value: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Sum of all values, exact."""
        return int(self.value.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """A GPU kernel as it ran with one shape on one device. `frame` is its leaf in `gpu_time`."""

    frame: Frame
    device: DeviceInfo
    grid: tuple[int, int, int]
    """Blocks in each direction."""
    block: tuple[int, int, int]
    """Threads of a block in each direction."""
    registers_per_thread: int
    shared_bytes: int
    """Of a block."""
    executions: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """All profiles of one target (resource) and one window, with their shared tables.

    `stacks` hold indexes of `frames`, root first. Index 0 of `attribute_sets` is always the empty set.
    `profiles` are in display order: the headline first. A profile may be empty; encoders leave it out.
    """

    resource: AttributeSet
    scope: str
    window: Window
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    attribute_sets: tuple[AttributeSet, ...]
    profiles: tuple[Profile, ...]
    profile_attributes: AttributeSet = ()
    """On every profile of the bundle: how estimates were made."""
    waits: tuple[tuple[int, int], ...] = ()
    """(stack, calls): how many calls waited. Stacks end with how, as `[spin]`. For findings; not exported."""
    kernels: tuple[KernelUse, ...] = ()
    """The kernels that ran longest, with their shapes. For findings; not exported."""
    kernel_executions: int = 0
    """How often all kernels ran, those of other shapes included. For findings; not exported."""
    is_windowed: bool = False
    """Launches of kernels count only where they were captured all the time; others are estimates. For findings."""
    used: Window | None = None
    """The part of the window from the first driver call of the target to the last. For findings; not exported."""
    startup_idle: tuple[tuple[int, int], ...] = ()
    """(stack, nanoseconds): what of `gpu_idle` was before the first driver call. For findings; not exported."""
    idle_gaps: tuple[tuple[int, float], ...] = ()
    """(stack, gaps): of how many gaps the rest of it is all there was. For findings; not exported."""
    long_idle: tuple[tuple[int, int], ...] = ()
    """(stack, nanoseconds): what is of gaps longer than a launch takes to prepare. For findings; not exported."""
    launches: tuple[tuple[int, int], ...] = ()
    """(stack, submissions) of estimates that another bundle exports. For findings; not exported."""
