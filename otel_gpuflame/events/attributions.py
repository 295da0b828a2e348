"""What the correlation of both sides says: so many nanoseconds of one kind, of this stack, for this reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey, StackKey

AttributionArray: TypeAlias = NDArray[np.void]
"""Structured array of `ATTRIBUTION`."""


class Measure(IntEnum):
    """What is measured: one sample type each."""

    GPU_WAIT = 1
    GPU_TIME = 2
    GPU_QUEUE = 3
    GPU_IDLE = 4


class Leaf(IntEnum):
    """What stands at the leaf. KERNEL: the kernel `name`, or what the API `leaf_api` gives the device to do."""

    KERNEL = 1
    GPU_IDLE = 2
    """Of a wait: nothing that it waited for ran."""
    DRIVER = 3
    """Of a wait: all that it waited for had ended."""
    LAUNCH_LATENCY = 4
    WAITS_FOR_EVENT = 5
    DEVICE_FULL = 6
    NO_SAMPLE = 7
    """Of idle time: what the thread did is not known; it stands under the launch that ended the gap."""
    ON_CPU = 8
    OFF_CPU = 9
    DRIVER_CALL = 10
    """Of idle time: what the thread did meanwhile."""
    UNKNOWN_NOT_CAPTURED = 11
    """Of idle time: a process on the device was not captured whole."""
    UNKNOWN_INCOMPLETE = 12
    """Of idle time: records are missing."""
    QUEUE_FULL = 13
    """Of a wait: a launch was held back and nothing is known of what ran meanwhile."""
    BEFORE_FIRST = 14
    """Of idle time: of a device, until the first execution of a program that was captured from its start."""
    AFTER_LAST = 15
    """Of idle time: nothing ended it for as long as executions were captured."""


class NoLaunch(IntEnum):
    """Why an execution stands under no stack."""

    NONE = 0
    NO_LAUNCH_RECORD = 1
    """CUPTI recorded no launch with its correlation id."""
    NO_PROBE = 2
    """No probe saw that launch."""
    EVICTED = 3
    """Too much was waiting for its other half."""


_OF_CALLS: Final = (
    "process_start_ns",
    "stack_hash",
    "trace_id",
    "span_id",
    "local_root_span_id",
    "tgid",
    "tid",
    "api",
    "flags",
)


_OWN: Final = (
    ("time_ns", "<u8"),
    ("value_ns", "<i8"),
    ("sampled_ns", "<u8"),
    ("name", "<u8"),
    ("device", "<u4"),
    ("leaf_api", "<u2"),
    ("gaps", "<f2"),
    ("measure", "|u1"),
    ("leaf", "|u1"),
    ("mode", "|u1"),
    ("no_launch", "|u1"),
)
"""Columns that no call has, the widest first."""


def _parts_of_call() -> tuple[tuple[int, int], tuple[int, int]]:
    """Where in a row of `wire.CALL` the bytes are that `_OF_CALLS` lie in: two stretches, from and to."""
    fields: Mapping[str, Any] = wire.CALL.fields or {}
    ends = [(fields[name][1], fields[name][1] + fields[name][0].itemsize) for name in _OF_CALLS]
    last = (wire.CALL.itemsize - 8, wire.CALL.itemsize)
    first = [place for place in ends if place[1] <= last[0]]
    return (min(first)[0], max(end for _, end in first)), last


OF_CALL: Final = _parts_of_call()
"""Bytes of a row of `wire.CALL` that a row of `ATTRIBUTION` begins with: two copies make it, not nine."""


def _row_dtype() -> np.dtype[Any]:
    """The bytes `OF_CALL` one after the other, and the other columns where these have room, or behind them."""
    fields: Mapping[str, Any] = wire.CALL.fields or {}
    places: dict[str, tuple[Any, int]] = {}
    size = 0
    for begin, end in OF_CALL:
        for name in _OF_CALLS:
            if begin <= fields[name][1] < end:
                places[name] = (fields[name][0], size + fields[name][1] - begin)
        size += end - begin
    taken = np.zeros(size + 8 * len(_OWN), np.bool_)
    for dtype, offset in places.values():
        taken[offset : offset + dtype.itemsize] = True
    for name, form in _OWN:
        width = np.dtype(form).itemsize
        offset = next(at for at in range(0, len(taken), width) if not taken[at : at + width].any())
        taken[offset : offset + width] = True
        places[name] = (np.dtype(form), offset)
        size = max(size, offset + width)
    return np.dtype(
        {
            "names": list(places),
            "formats": [dtype for dtype, _ in places.values()],
            "offsets": [offset for _, offset in places.values()],
            "itemsize": -(-size // 8) * 8,
        }
    )


ATTRIBUTION: Final = _row_dtype()
"""Fields of the call that it is about (the launch, the wait; all 0 where there is none), and:

`time_ns`: in which window it counts. `value_ns`: what is added. `name`: handle of the kernel at the leaf, or 0.
`device`: index of `DeviceInfo`. `measure`, `leaf`, `no_launch`: the enums here. `mode`: `WaitMode` of a wait.
`leaf_api`: for a leaf that is no kernel, the API whose `detail` says what it is.
`gaps`: of idle time by what a thread did, of how many gaps it is all there was: 0.25 of a quarter of one.
`sampled_ns`: the moment that had to lie in a window for this to be known: of executions when they were launched (begun,
where no launch is known), of idle time when it was. 0: known whatever windows there were,
as waits are that are not windowed.
"""


@dataclass(frozen=True, slots=True)
class Attributions:
    """Not stored in captures: replay makes them again."""

    rows: AttributionArray


@dataclass(frozen=True, slots=True)
class StackPair:
    """`key` stands for the frames of `outer`, the call `api`, and the frames of `inner`, an estimate."""

    key: StackKey
    process: ProcessKey
    outer: StackKey
    api: int
    inner: StackKey


@dataclass(frozen=True, slots=True)
class StackPairs:
    """Delivered before the first attribution that carries one of these keys."""

    pairs: tuple[StackPair, ...]
