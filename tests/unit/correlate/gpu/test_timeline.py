"""When devices are busy and when not: both together are the window, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.rows import JOINED, JoinedArray, by_device
from otel_gpuflame.correlate.gpu.timeline import busy_intervals, covered_until, find_gaps

Runs = list[tuple[int, int, int]]


def executions(runs: Runs) -> JoinedArray:
    """Of (device, start, end)."""
    rows = np.zeros(len(runs), JOINED)
    for place, (device, start, end) in enumerate(runs):
        rows[place]["device"], rows[place]["start_ns"], rows[place]["end_ns"] = device, start, end
        rows[place]["name"] = place + 1
    return by_device(rows)


@pytest.mark.parametrize(
    ("runs", "busy"),
    [
        ([], []),
        ([(0, 10, 20)], [(0, 10, 20)]),
        ([(0, 10, 20), (0, 20, 30)], [(0, 10, 30)]),
        ([(0, 10, 20), (0, 21, 30)], [(0, 10, 20), (0, 21, 30)]),
        ([(0, 10, 40), (0, 15, 20), (0, 30, 35), (0, 41, 50)], [(0, 10, 40), (0, 41, 50)]),
        ([(0, 10, 90), (1, 20, 30), (1, 40, 50)], [(0, 10, 90), (1, 20, 30), (1, 40, 50)]),
    ],
)
def test_busy_is_the_union_of_executions(runs: Runs, busy: Runs) -> None:
    """Executions that overlap or touch are one busy time; devices are told apart."""
    found = busy_intervals(executions(runs))
    rows = zip(found.device.tolist(), found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    assert list(rows) == busy


@pytest.mark.parametrize(
    ("runs", "gaps"),
    [
        # Gaps of device 0 from 100 to 200: start, end, name of what ended it, whether anything had run before.
        ([], [(100, 200, 0, True)]),
        ([(0, 110, 150)], [(100, 110, 1, True), (150, 200, 0, False)]),
        ([(0, 50, 60), (0, 110, 200)], [(100, 110, 2, False)]),
        ([(0, 50, 150), (0, 250, 260)], [(150, 200, 2, False)]),
        ([(0, 50, 250)], []),
        ([(0, 50, 60), (0, 250, 260)], [(100, 200, 2, False)]),
        ([(0, 250, 260)], [(100, 200, 1, True)]),
        ([(0, 50, 60)], [(100, 200, 0, False)]),
        ([(1, 110, 150)], [(100, 200, 0, True)]),
        ([(0, 100, 120), (0, 130, 200)], [(120, 130, 2, False)]),
        ([(0, 110, 110), (0, 150, 160)], [(100, 150, 2, True), (160, 200, 0, False)]),
    ],
)
def test_gaps_know_what_ended_them(runs: Runs, gaps: list[tuple[int, int, int, bool]]) -> None:
    """A gap ends with the next execution, which may begin after the window, as the one before may lie before it."""
    rows = executions(runs)
    found, _ = find_gaps(busy_intervals(rows), np.array([0], np.uint32), 100, 200)
    names = [int(rows["name"][each]) if each >= 0 else 0 for each in found.ended_by]
    columns = (found.start_ns.tolist(), found.end_ns.tolist(), names, found.is_first.tolist())
    assert list(zip(*columns, strict=True)) == gaps


@pytest.mark.parametrize(
    ("device", "at", "until"),
    [(0, 5, 5), (0, 10, 30), (0, 29, 30), (0, 30, 30), (0, 99, 99), (1, 15, 15), (2, 15, 15)],
)
def test_until_when_a_device_stays_busy(device: int, at: int, until: int) -> None:
    """From a time in a busy interval until its end; else not at all."""
    busy = busy_intervals(executions([(0, 10, 20), (0, 20, 30), (1, 20, 30)]))
    found = covered_until(busy, np.array([device], np.uint32), np.array([at], np.uint64))
    assert found.tolist() == [until]


def test_nothing_keeps_a_device_busy_without_executions() -> None:
    """Without any execution every time is returned as it is."""
    at = np.array([7], np.uint64)
    assert covered_until(busy_intervals(executions([])), np.array([0], np.uint32), at).tolist() == [
        7
    ]


runs = st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 60))


@settings(max_examples=200, deadline=None)
@given(st.lists(runs, max_size=20), st.integers(0, 200), st.integers(0, 200))
def test_busy_and_gaps_are_the_window(some: Runs, start: int, length: int) -> None:
    """For any executions, at each nanosecond of the window a device is busy or in a gap, and never both."""
    rows = executions([(device, at, at + lasts) for device, at, lasts in some])
    devices = np.array([0, 1, 3], np.uint32)
    gaps, busy_ns = find_gaps(busy_intervals(rows), devices, start, start + length)
    for place, device in enumerate(devices.tolist()):
        mine = gaps.device == device
        pairs = zip(gaps.start_ns[mine].tolist(), gaps.end_ns[mine].tolist(), strict=True)
        idle = [now for begin, end in pairs for now in range(begin, end)]
        ran = [
            (int(row["start_ns"]), int(row["end_ns"])) for row in rows if row["device"] == device
        ]
        expected = [
            now
            for now in range(start, start + length)
            if not any(begin <= now < end for begin, end in ran)
        ]
        assert idle == expected
        assert busy_ns[place] == length - len(expected)
