"""Which calls are waits, how long they are, and how they were spent."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.waits import ASYNC_COPY_WAITS_FROM_NS, WaitMode, find_waits
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.wire import CallFlag
from tests.unit.profile.builders import call

EDGE = ASYNC_COPY_WAITS_FROM_NS
ARGUMENT = CallFlag.BLOCKING_ARG
LAUNCH, SYNC, READ, COPY = (
    "cuLaunchKernel",
    "cuStreamSynchronize",
    "clEnqueueReadBuffer",
    "cuMemcpyHtoDAsync",
)


@pytest.mark.parametrize(
    ("api", "blocking"),
    [
        (LAUNCH, Blocking.NEVER),
        (SYNC, Blocking.ALWAYS),
        (READ, Blocking.BY_ARGUMENT),
        (COPY, Blocking.BY_DURATION),
    ],
)
def test_the_apis_of_these_tables_cover_every_way_of_blocking(api: str, blocking: Blocking) -> None:
    """The calls used below are of the kind that they stand for."""
    assert apis.BY_NAME[api].blocking is blocking


@pytest.mark.parametrize(
    ("api", "flags", "duration_ns", "expected_ns"),
    [
        (LAUNCH, 0, 10_000_000, 0),
        (LAUNCH, ARGUMENT, 10_000_000, 0),
        (SYNC, 0, 1, 1),
        (SYNC, 0, 10_000_000, 10_000_000),
        (SYNC, ARGUMENT, 10_000_000, 10_000_000),
        (SYNC, 0, 0, 0),
        (READ, 0, 10_000_000, 0),
        (READ, ARGUMENT, 10_000_000, 10_000_000),
        (READ, ARGUMENT, 1, 1),
        (COPY, 0, EDGE - 1, 0),
        (COPY, 0, EDGE, EDGE),
        (COPY, ARGUMENT, EDGE - 1, 0),
        (COPY, 0, 10_000_000, 10_000_000),
        (SYNC, 0, -1, 0),
        (COPY, 0, -EDGE, 0),
        (SYNC, 0, None, 0),
        (COPY, 0, None, 0),
        (READ, ARGUMENT, None, 0),
        (9_999, 0, 10_000_000, 0),
        (65_535, ARGUMENT, 10_000_000, 0),
    ],
)
def test_duration_of_a_wait(
    api: str | int, flags: int, duration_ns: int | None, expected_ns: int
) -> None:
    """A call is a wait of its whole duration, or none at all, by its API, flags and duration."""
    waits = find_waits(call(api, flags=flags, duration_ns=duration_ns))
    assert waits.duration_ns.tolist() == [expected_ns]
    assert waits.inverted == (duration_ns is not None and duration_ns < 0)
    if not expected_ns and duration_ns != 0:
        assert waits.mode.tolist() == [WaitMode.NONE]


def test_end_time_without_the_returned_flag_is_not_believed() -> None:
    """Only a call that says it returned has a duration, whatever stands in its end time."""
    row = call(SYNC, duration_ns=5_000)
    row["flags"] = 0
    assert find_waits(row).duration_ns.tolist() == [0]


@pytest.mark.parametrize(
    ("switches", "mode"),
    [(0, WaitMode.SPIN), (1, WaitMode.BLOCKED), (2**32 - 1, WaitMode.BLOCKED)],
)
def test_giving_up_the_cpu_tells_blocked_from_spinning(switches: int, mode: WaitMode) -> None:
    """A thread that gave up the CPU at least once inside the call was blocked, else it polled."""
    row = call(SYNC, duration_ns=5_000, voluntary_switches=switches)
    assert find_waits(row).mode.tolist() == [mode]


@pytest.mark.parametrize("api", apis.ALL, ids=lambda api: api.name)
def test_every_api_is_looked_up_under_its_own_id(api: apis.Api) -> None:
    """A long call with the blocking flag is a wait exactly if the API can block at all."""
    row = call(api.name, flags=ARGUMENT, duration_ns=1_000_000)
    assert bool(find_waits(row).duration_ns[0]) == (api.blocking is not Blocking.NEVER)


def test_rows_keep_their_places() -> None:
    """In a mixed batch every row gets its own answer, and inverted ones are counted."""
    rows = np.concatenate(
        [
            call(SYNC, duration_ns=30),
            call(LAUNCH),
            call(SYNC, duration_ns=-5),
            call(COPY, duration_ns=EDGE + 1, voluntary_switches=1),
            call(SYNC),
        ]
    )
    waits = find_waits(rows)
    assert waits.duration_ns.tolist() == [30, 0, 0, EDGE + 1, 0]
    assert waits.mode.tolist() == [1, 0, 0, 2, 0]
    assert waits.inverted == 1


def test_no_calls_no_waits() -> None:
    """An empty batch is fine."""
    waits = find_waits(np.zeros(0, wire.CALL))
    assert (len(waits.duration_ns), len(waits.mode), waits.inverted) == (0, 0, 0)
