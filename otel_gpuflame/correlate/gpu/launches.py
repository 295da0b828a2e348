"""Launches that the driver recorded, as columns, with the calls that they were made in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.backlog import Numbers
from otel_gpuflame.correlate.gpu.match import Mask, Positions, Times, claim
from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import NoLaunch
from otel_gpuflame.events.executions import EXECUTION, ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag

IS_SUBMISSION: Final = np.isin(np.arange(256), [int(kind) for kind in apis.SUBMISSIONS])
_NEVER: Final = np.iinfo(np.int64).max
_THREAD_BITS: Final = np.uint64(32)
"""CUPTI has no room for more of pthread_self(): stacks a multiple of 4 GiB apart are taken for one thread's."""
_THREAD: Final = np.uint64((1 << 32) - 1)
_ID_BITS: Final = np.uint64(32)
_EXECUTION_WORDS: Final = EXECUTION.itemsize // 8
_CALL_WORDS: Final = wire.CALL.itemsize // 8
_BLOCK: Final = 2_048
"""Rows that are put together at a time: 0.5 MiB, which stay in the innermost caches until they are complete."""

RECORDED: Final[np.dtype[Any]] = np.dtype(
    [("key", "<u8"), ("thread", "<u8"), ("begin_ns", "<i8"), ("end_ns", "<i8")]
)
"""What matters of a record of kind API: process and correlation id, process and thread, times."""

Table = TypeVar("Table", "Launches", "Calls")


def take(table: Table, places: Positions) -> Table:
    """Some rows of a table."""
    columns = (getattr(table, each.name) for each in fields(table))
    return type(table)(*(column.take(places) for column in columns))


@dataclass(slots=True)
class Calls:
    """Calls of the driver library; `free` ones may be those of a launch, and are not yet."""

    rows: CallArray
    number: Numbers
    free: Mask


@dataclass(slots=True)
class Launches:
    """Launches by process number; `call` is a position among calls that go with it, -1: no probe saw it."""

    number: Numbers
    key: NDArray[np.uint64]
    thread: NDArray[np.uint64]
    begin_ns: Times
    end_ns: Times
    executed: Mask
    call: Positions

    def __len__(self) -> int:
        return len(self.key)

    def followed_by(self, rows: NDArray[np.void], numbers: Numbers) -> Launches:
        """These, then those of `rows` (dtype `RECORDED`), which have no calls yet."""
        return Launches(
            number=np.concatenate((self.number, numbers)),
            key=np.concatenate((self.key, rows["key"])),
            thread=np.concatenate((self.thread, rows["thread"])),
            begin_ns=np.concatenate((self.begin_ns, rows["begin_ns"])),
            end_ns=np.concatenate((self.end_ns, rows["end_ns"])),
            executed=np.concatenate((self.executed, np.zeros(len(rows), np.bool_))),
            call=np.concatenate((self.call, np.full(len(rows), -1, np.intp))),
        )


def no_launches() -> Launches:
    """An empty table."""
    words, times, flags = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_)
    positions: Positions = np.empty(0, np.intp)
    return Launches(np.empty(0, np.int32), words, words, times, times, flags, positions)


def recorded(rows: ExecutionArray, numbers: Numbers) -> NDArray[np.void]:
    """`rows` (kind API) as `RECORDED`. Where the end is missing or wrong it is the begin."""
    result = np.empty(len(rows), RECORDED)
    result["key"], result["thread"] = id_keys(rows, numbers), thread_keys(rows, numbers)
    result["begin_ns"] = rows["start_ns"]
    result["end_ns"] = np.maximum(rows["start_ns"], rows["end_ns"])
    return result


def id_keys(rows: ExecutionArray, numbers: Numbers) -> NDArray[np.uint64]:
    """(n,) process and correlation id in one word."""
    ids: NDArray[np.uint64] = rows["correlation_id"].astype(np.uint64)
    return ids | (numbers.astype(np.uint64) << _ID_BITS)


def thread_keys(rows: NDArray[np.void], numbers: Numbers) -> NDArray[np.uint64]:
    """(n,) process and thread in one word."""
    threads: NDArray[np.uint64] = rows["thread_pointer"] & _THREAD
    return threads | (numbers.astype(np.uint64) << _THREAD_BITS)


def claim_calls(launches: Launches, calls: Calls, starts_ns: Times, first: int) -> Positions:
    """Give launches without a call theirs, where there is one. `first` is the position of the first of `calls`.

    Returns the last call of each thread, as places in `calls`.
    """
    rows = calls.rows
    without = np.flatnonzero(launches.call < 0)
    until_ns = np.full(len(rows), _NEVER)
    returned = np.flatnonzero(rows["flags"] & CallFlag.RETURNED)
    ends_ns = rows["end_ns"][returned].astype(np.int64)
    until_ns[returned] = np.where(ends_ns >= starts_ns[returned], ends_ns, _NEVER)
    claims = claim(
        (launches.thread.take(without), launches.begin_ns.take(without)),
        (thread_keys(rows, calls.number), starts_ns),
        until_ns,
        calls.free,
    )
    has = np.flatnonzero(claims.call >= 0)
    claimed = claims.call[has]
    launches.call[without[has]] = claimed + first
    calls.free[claimed] = False
    return claims.last


def joined(
    rows: ExecutionArray, found: Positions, launches: Launches, calls: CallArray
) -> tuple[JoinedArray, NDArray[np.uint8]]:
    """`rows` with their launches (`found`, -1: none) and these with their calls; and why each has none."""
    result = np.empty(len(rows), JOINED)
    words = result.view(np.uint64).reshape(len(rows), _EXECUTION_WORDS + _CALL_WORDS)
    of_rows = rows.view(np.uint64).reshape(len(rows), _EXECUTION_WORDS)
    of_calls = calls.view(np.uint64).reshape(len(calls), _CALL_WORDS)
    # One more, for those that have none: position -1.
    call, end_ns = np.append(launches.call, -1)[found], np.append(launches.end_ns, 0)[found]
    reasons = np.zeros(len(rows), np.uint8)
    missing = call < 0
    if not len(calls):
        of_calls = np.zeros((1, _CALL_WORDS), np.uint64)
    if missing.any():
        reasons[missing] = np.where(
            found[missing] < 0, NoLaunch.NO_LAUNCH_RECORD, NoLaunch.NO_PROBE
        )
        end_ns[missing] = 0
    for begin in range(0, len(rows), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        words[block, :_EXECUTION_WORDS] = of_rows[block]
        words[block, _EXECUTION_WORDS:] = of_calls.take(call[block], axis=0, mode="clip")
        alone = begin + np.flatnonzero(missing[block])
        words[alone, _EXECUTION_WORDS:] = 0
        for name in ("tgid", "process_start_ns"):
            result[name][alone] = rows[name][alone]
        result["launch_end_ns"][block] = end_ns[block]
        result["no_launch"][block] = reasons[block]
    return result, reasons
