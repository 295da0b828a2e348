"""Which calls made the CPU wait for the GPU, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag

ASYNC_COPY_WAITS_FROM_NS: Final = 5_000
"""An asynchronous copy that returns sooner only submitted. On an H200, 100 copies each from or to pinned memory took 2
to 3 µs whatever their size, those to pageable memory 7 µs and more: they wait for the copy and all work before it. The
driver does not say which it was; docs/sample-types.md has the distributions."""


class WaitMode(IntEnum):
    """How the thread spent a wait."""

    NONE = 0
    SPIN = 1
    """On the CPU: it polled."""
    BLOCKED = 2
    """It gave up the CPU at least once."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Columns as long as the calls: nanoseconds waited (0 where the call is no wait) and how."""

    duration_ns: NDArray[np.int64]
    mode: NDArray[np.uint8]
    inverted: int
    """Calls whose return lies before their entry: counted, and no wait."""


def _blocking_table() -> NDArray[np.uint8]:
    """Blocking of each API id, as an index of `list(Blocking)`."""
    order = list(Blocking)
    table = np.zeros(max(api.id for api in apis.ALL) + 1, np.uint8)
    for api in apis.ALL:
        table[api.id] = order.index(api.blocking)
    return table


_TABLE: Final = _blocking_table()
_ALWAYS, _ARGUMENT, _DURATION = (
    list(Blocking).index(blocking)
    for blocking in (Blocking.ALWAYS, Blocking.BY_ARGUMENT, Blocking.BY_DURATION)
)


def find_waits(rows: CallArray) -> Waits:
    """Waits among `rows` (dtype `wire.CALL`). Calls of an API that we do not know are no waits."""
    returned = (rows["flags"] & CallFlag.RETURNED) != 0
    known = rows["api"] < len(_TABLE)
    blocking = _TABLE[np.where(known, rows["api"], 0)]
    duration_ns = np.where(
        returned, rows["end_ns"].astype(np.int64) - rows["start_ns"].astype(np.int64), 0
    )
    inverted = duration_ns < 0
    is_wait = (
        (blocking == _ALWAYS)
        | ((blocking == _ARGUMENT) & ((rows["flags"] & CallFlag.BLOCKING_ARG) != 0))
        | ((blocking == _DURATION) & (duration_ns >= ASYNC_COPY_WAITS_FROM_NS))
    )
    is_wait &= returned & known & ~inverted
    mode = np.where(rows["voluntary_switches"] > 0, WaitMode.BLOCKED, WaitMode.SPIN)
    return Waits(
        duration_ns=np.where(is_wait, duration_ns, 0),
        mode=np.where(is_wait, mode, WaitMode.NONE).astype(np.uint8),
        inverted=int(inverted.sum()),
    )
