"""Calls as columns that can be grouped, and groups of calls as samples."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.spans import SpanLink, link_columns
from otel_gpuflame.correlate.threads import find_thread_times
from otel_gpuflame.correlate.waits import find_waits
from otel_gpuflame.events import apis
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known import Known
from otel_gpuflame.profile.ledger import EVENT_KINDS, Ledger
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.samples import SampleTable, captured_stack, link_of
from otel_gpuflame.profile.thread_samples import THREAD_KINDS, ThreadKey, add_thread_time

_MAX_COPY_BYTES: Final = 1 << 48
"""More than a program can have mapped: the driver refuses such a copy, and sums of such sizes leave 64 bits."""
LINK_COLUMN: Final = 4
_TGID_SHIFT, _KIND_SHIFT = np.uint64(32), np.uint64(24)
_BYTE = np.uint64(0xFF)
_IS_SUBMISSION = np.isin(np.arange(256), [int(kind) for kind in apis.SUBMISSIONS])


def count_calls(rows: CallArray, counts: NDArray[np.int64], ledger: Ledger) -> None:
    """Enter calls that were made `counts` times each into the books."""
    # Sums of whole numbers, exact in floating point.
    for kind, count in enumerate(np.bincount(rows["kind"], counts).astype(np.int64).tolist()):
        if not count:
            continue
        name = Kind(kind).name.lower() if kind in set(Kind) else f"kind {kind}"
        if name in EVENT_KINDS:
            ledger.profiled[name] += count
        else:
            ledger.remarks["calls of unknown kind"] += count
    unreadable = (rows["flags"] & CallFlag.ARGS_UNREADABLE) != 0
    ledger.remarks["arguments unreadable"] += int(counts[unreadable].sum())


def call_columns(
    rows: CallArray, counts: NDArray[np.int64], link: SpanLink | None, ledger: Ledger
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Columns of calls that were made `counts` times each.

    Keys: tgid|kind|api|mode, process start, kernel handle or driver command, stack (2), link (3). Once resolved, links
    begin at LINK_COLUMN.

    Values: calls or samples, copied bytes, nanoseconds waited, off the CPU or in the device driver. Waits that come as
    attributions as well have none here.
    """
    waits = find_waits(rows)
    ledger.remarks["inverted times"] += waits.inverted
    kinds = rows["kind"]
    keys = np.empty((8, len(rows)), np.uint64).T
    keys[:, 0] = rows["tgid"].astype(np.uint64) << _TGID_SHIFT
    keys[:, 0] |= kinds.astype(np.uint64) << _KIND_SHIFT
    keys[:, 0] |= rows["api"].astype(np.uint64) << np.uint64(8) | waits.mode
    keys[:, 1] = rows["process_start_ns"]
    keys[:, 2] = np.where(kinds == Kind.LAUNCH, rows["object"], 0)
    keys[:, 3:5] = rows["stack_hash"]
    keys[:, 5:8] = 0 if link is None else link_columns(rows, link)
    values = np.empty((3, len(rows)), np.int64).T
    values[:, 0] = 1
    is_copy = kinds == Kind.COPY
    possible = rows["bytes"] <= _MAX_COPY_BYTES
    ledger.remarks["impossible copy sizes, taken as 0"] += int(counts[is_copy & ~possible].sum())
    values[:, 1] = np.where(is_copy & possible, rows["bytes"], 0)
    values[:, 2] = np.where(rows["flags"] & CallFlag.ATTRIBUTED, 0, waits.duration_ns)
    threads = find_thread_times(rows)
    if threads is not None:
        keys[threads.rows, 0] = keys[threads.rows, 0] & ~_BYTE | threads.mode
        keys[threads.rows, 2] = threads.subject
        values[threads.rows, 0] = threads.count
        values[threads.rows, 2] = threads.duration_ns
    values *= counts[:, None]
    return keys, values


def submissions(groups: Groups) -> int:
    """How many of the calls in `groups` (of `call_columns`) gave the GPU work."""
    kinds = groups.keys[:, 0] >> _KIND_SHIFT & _BYTE
    return int(groups.sums[_IS_SUBMISSION[kinds], 0].sum())


def add_calls(table: SampleTable, key: list[int], sums: list[int], known: Known) -> None:
    """Add a group of `call_columns`, resolved, to the samples of its process."""
    kind, api_id, mode = key[0] >> 24 & 0xFF, key[0] >> 8 & 0xFFFF, key[0] & 0xFF
    calls, copied_bytes, waited_ns = sums
    no_stack = labels.NO_STACK_OFF_CPU if kind == Kind.OFF_CPU else labels.NO_STACK_TAKEN
    base = captured_stack(table, StackKey(key[2], key[3]), known, no_stack)
    link = link_of(key[LINK_COLUMN : LINK_COLUMN + 3])
    if kind in THREAD_KINDS:
        thread_key = ThreadKey(kind, api_id, mode, key[1])
        add_thread_time(table, thread_key, base, link, calls or waited_ns)
        return
    call = table.indexes((labels.call_frame(api_id),))
    if mode:
        stack = base + call + table.indexes((labels.wait_frame(mode),))
        table.add(GPU_WAIT, stack, link, waited_ns)
        table.count_waits(stack, calls)
    if kind in apis.SUBMISSIONS:
        stack = base + call + _work(table, key, known)
        table.add(GPU_LAUNCH, stack, link, calls)
        table.add(GPU_COPY, stack, link, copied_bytes)


def submission_of(table: SampleTable, key: list[int], known: Known) -> tuple[int, ...] | None:
    """The stack under which a group of calls counts in `gpu_launch`; None where it gave the GPU no work."""
    kind, api_id = key[0] >> 24 & 0xFF, key[0] >> 8 & 0xFFFF
    if kind not in apis.SUBMISSIONS:
        return None
    base = captured_stack(table, StackKey(key[2], key[3]), known, labels.NO_STACK_TAKEN)
    return base + table.indexes((labels.call_frame(api_id),)) + _work(table, key, known)


def _work(table: SampleTable, key: list[int], known: Known) -> tuple[int, ...]:
    return table.indexes((labels.work_frame(key[0] >> 8 & 0xFFFF, known.name(key[1])),))
