"""Everything a source can tell the pipeline. Hot data (calls) is a numpy array; the rest is rare and is objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.attributions import Attributions, StackPairs
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetrics
from otel_gpuflame.events.executions import (
    Devices,
    Executions,
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey, Stack, StackKey

CallArray: TypeAlias = NDArray[np.void]
"""Structured array of `wire.CALL`."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Driver calls in the order in which BPF sent them; dtype `wire.CALL`."""

    rows: CallArray


@dataclass(frozen=True, slots=True)
class Stacks:
    """Resolved stacks, each delivered once and before the first call that carries its key."""

    stacks: tuple[Stack, ...]


@dataclass(frozen=True, slots=True)
class HandleName:
    """From `time_ns` on, `handle` in `process` means the GPU function `name` (mangled, as the program gave it)."""

    process: ProcessKey
    time_ns: int
    handle: int
    name: str
    readable: str = ""
    """Demangled. Kept in captures so that replay needs no demangler; profiles show it shorter (`kernel_names`)."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of GPU functions, delivered before the first call that uses the handle."""

    names: tuple[HandleName, ...]


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """A captured process: its OpenTelemetry resource attributes, sorted by key."""

    process: ProcessKey
    attributes: tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """Processes that appeared, or whose description changed (exec); delivered before their first call."""

    targets: tuple[TargetInfo, ...]


@dataclass(frozen=True, slots=True)
class ProcessesEnded:
    """Processes of which no further call will come: what is known of them can go when their last window is closed."""

    processes: tuple[ProcessKey, ...]


@dataclass(frozen=True, slots=True)
class StacksForgotten:
    """Stacks that come again before the next call that carries them: what is known of them can go."""

    keys: tuple[StackKey, ...]


@dataclass(frozen=True, slots=True)
class SamplingWindow:
    """Windowed calls are complete from `open_ns` until `close_ns`, one window in each stratum.

    Delivered when the window has opened. `probability_ppb`: chance, in 10⁻⁹, with which any instant of the stratum
    was to be covered; 10⁹ means that everything is captured. `with_waits`: in this stratum, calls that may wait are
    among the windowed ones; `with_graph_launches`: launches of graphs are.
    """

    stratum_start_ns: int
    stratum_end_ns: int
    open_ns: int
    close_ns: int
    probability_ppb: int
    with_waits: bool = False
    with_graph_launches: bool = False


@dataclass(frozen=True, slots=True)
class LossCount:
    """`count` events of `kind` met `outcome` at the source; kinds and outcomes are lower-case names of `wire`."""

    kind: str
    outcome: str
    count: int


@dataclass(frozen=True, slots=True)
class SourceCounters:
    """Running totals of a source since it started (not differences), at `time_ns`."""

    time_ns: int
    counts: tuple[LossCount, ...]


@dataclass(frozen=True, slots=True)
class Watermark:
    """The source has delivered everything up to `time_ns` (CLOCK_MONOTONIC)."""

    time_ns: int


@dataclass(frozen=True, slots=True)
class CaptureStart:
    """First event of every capture.

    `unix_offset_ns` + CLOCK_MONOTONIC = unix time; `attributes` describe host and recording and are free-form strings.
    """

    time_ns: int
    unix_offset_ns: int
    attributes: tuple[tuple[str, str], ...]


Event: TypeAlias = (
    CaptureStart
    | Calls
    | Stacks
    | Names
    | Targets
    | ProcessesEnded
    | StacksForgotten
    | SamplingWindow
    | SourceCounters
    | Watermark
    | Devices
    | Executions
    | ExecutionsBegin
    | ExecutionsEnd
    | ExecutionWatermark
    | DeviceMetrics
    | DeviceErrors
    | Attributions
    | StackPairs
)
