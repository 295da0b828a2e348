"""Attributions as columns that can be grouped, and groups of attributions as samples."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.spans import SpanLink, link_columns
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure, NoLaunch
from otel_gpuflame.events.frames import Frame, StackKey
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known import Known
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.sample_types import GPU_IDLE, GPU_QUEUE, GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.samples import SampleTable, captured_stack, link_of

_SHIFT_32, _SHIFT_24, _SHIFT_16, _SHIFT_8 = (np.uint64(bits) for bits in (32, 24, 16, 8))
_STARTUP, _LONG = np.uint64(1 << 31), np.uint64(1 << 30)
"""The highest bits of the measure."""
_LONG_GAP_NS: Final = 10_000_000
"""To launch its kernel takes no operator so long. What does is a library that is loaded, a kernel that is compiled."""
MILLION: Final = 1_000_000
_SAMPLE_TYPES: Final[dict[int, ValueType]] = {
    Measure.GPU_WAIT: GPU_WAIT,
    Measure.GPU_TIME: GPU_TIME,
    Measure.GPU_QUEUE: GPU_QUEUE,
    Measure.GPU_IDLE: GPU_IDLE,
}
_IS_MEASURE = np.isin(np.arange(256), list(_SAMPLE_TYPES))
LINK_COLUMN: Final = 5
_NOBODYS_IDLE: Final = frozenset(
    {
        Leaf.UNKNOWN_NOT_CAPTURED,
        Leaf.UNKNOWN_INCOMPLETE,
        Leaf.BEFORE_FIRST,
        Leaf.AFTER_LAST,
    }
)


def attribution_columns(
    rows: AttributionArray, link: SpanLink | None, ledger: Ledger, first_call_ns: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Columns of attributions; what is measured in a way that we do not know is remarked and left out.

    Keys: tgid|is idle before `first_call_ns`|is of a long gap|measure|api|mode, process start, kernel handle,
    device|leaf api|leaf|no launch, stack (2), link (3). Once resolved, links begin at LINK_COLUMN.

    Values: nanoseconds, attributions, millionths of gaps of idle time.
    """
    is_known = _IS_MEASURE[rows["measure"]]
    if not is_known.all():
        ledger.remarks["attributions of unknown measure"] += int((~is_known).sum())
        rows = rows[is_known]
    keys = np.empty((9, len(rows)), np.uint64).T
    keys[:, 0] = rows["tgid"].astype(np.uint64) << _SHIFT_32
    keys[:, 0] |= rows["measure"].astype(np.uint64) << _SHIFT_24
    idle = np.flatnonzero(rows["measure"] == Measure.GPU_IDLE)
    gaps = rows["gaps"][idle].astype(np.float64)
    is_long = (gaps > 0) & (rows["value_ns"][idle] > gaps * _LONG_GAP_NS)
    keys[idle[is_long], 0] |= _LONG
    keys[:, 0] |= _STARTUP * (
        (rows["measure"] == Measure.GPU_IDLE) & (rows["time_ns"] < first_call_ns)
    )
    keys[:, 0] |= rows["api"].astype(np.uint64) << _SHIFT_8 | rows["mode"]
    keys[:, 1] = rows["process_start_ns"]
    keys[:, 2] = rows["name"]
    keys[:, 3] = rows["device"].astype(np.uint64) << _SHIFT_32
    keys[:, 3] |= rows["leaf_api"].astype(np.uint64) << _SHIFT_16
    keys[:, 3] |= rows["leaf"].astype(np.uint64) << _SHIFT_8 | rows["no_launch"]
    keys[:, 4:6] = rows["stack_hash"]
    keys[:, 6:9] = 0 if link is None else link_columns(rows, link)
    values = np.zeros((3, len(rows)), np.int64).T
    values[:, 0] = rows["value_ns"]
    values[:, 1] = 1
    values[idle, 2] = np.rint(gaps * MILLION)
    return keys, values


def measure_of(key: list[int]) -> int:
    """The `Measure` of a group of `attribution_columns`."""
    return key[0] >> 24 & 0x3F


def add_attributions(table: SampleTable, key: list[int], sums: list[int], known: Known) -> None:
    """Add a group of `attribution_columns`, resolved, to the samples of its process."""
    measure, api_id, mode = measure_of(key), key[0] >> 8 & 0xFFFF, key[0] & 0xFF
    device, leaf_api = key[2] >> 32, key[2] >> 16 & 0xFFFF
    leaf, no_launch = key[2] >> 8 & 0xFF, key[2] & 0xFF
    frames: list[Frame] = []
    if api_id:
        frames.append(labels.call_frame(api_id))
    if measure == Measure.GPU_WAIT and mode:
        frames.append(labels.wait_frame(mode))
    name = known.name(key[1])
    # Idle time is about what a thread did, and the call that it was in stands there already.
    has_work = measure != Measure.GPU_IDLE and (name is not None or leaf_api)
    if leaf == Leaf.KERNEL or has_work:
        frames.append(labels.executed_frame(api_id, leaf_api, name))
    if leaf != Leaf.KERNEL:
        frames.append(labels.reason_frame(leaf))
    base = _base(table, StackKey(key[3], key[4]), leaf, no_launch, known)
    stack = base + table.indexes(frames)
    if key[0] & int(_STARTUP):
        table.note_startup(stack, sums[0])
    elif sums[2]:
        table.note_gaps(stack, sums[2] / MILLION, sums[0] if key[0] & int(_LONG) else 0)
    table.add(
        _SAMPLE_TYPES[measure],
        stack,
        link_of(key[LINK_COLUMN : LINK_COLUMN + 3]),
        sums[0],
        table.hardware(known.devices.get(device)),
    )


def _base(
    table: SampleTable, key: StackKey, leaf: int, no_launch: int, known: Known
) -> tuple[int, ...]:
    """What the frames of an attribution stand on."""
    if no_launch != NoLaunch.NONE:
        return table.indexes((labels.no_launch_frame(no_launch),))
    if leaf in _NOBODYS_IDLE and not any(key):
        return ()
    return captured_stack(table, key, known, labels.NO_STACK_TAKEN)
