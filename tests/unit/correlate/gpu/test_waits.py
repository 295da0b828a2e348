"""A wait is cut, to the nanosecond, into what ran meanwhile, an idle device, and the driver."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.correlate.gpu.waits import explain_waits
from otel_gpuflame.correlate.waits import WaitMode
from otel_gpuflame.events import apis
from otel_gpuflame.events.attributions import ATTRIBUTION, AttributionArray, Leaf, Measure
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.wire import CallFlag
from tests.unit.correlate.gpu.scene import SECOND, A, B, C, Scene, by_leaf

IDLE, DRIVER, KERNEL = (Leaf.GPU_IDLE, 0), (Leaf.DRIVER, 0), Leaf.KERNEL


def explain(scene: Scene) -> AttributionArray:
    """The waits of a scene."""
    scopes, work = scene.scopes()
    waits = scene.waits()
    return explain_waits(waits, work, scopes, np.zeros(len(waits), np.bool_))


Runs = list[tuple[int, int, int, int]]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # Of each execution on stream A: name, launch, start, end. The wait is from 100 to 200.
        ([], {DRIVER: 100}),
        ([(1, 10, 20, 90)], {DRIVER: 100}),
        ([(1, 10, 20, 100)], {DRIVER: 100}),
        ([(1, 10, 20, 101)], {(KERNEL, 1): 1, DRIVER: 99}),
        ([(1, 10, 20, 200)], {(KERNEL, 1): 100}),
        ([(1, 10, 20, 205)], {(KERNEL, 1): 100}),
        ([(1, 10, 120, 150)], {IDLE: 20, (KERNEL, 1): 30, DRIVER: 50}),
        (
            [(1, 10, 20, 130), (2, 20, 140, 180)],
            {(KERNEL, 1): 30, IDLE: 10, (KERNEL, 2): 40, DRIVER: 20},
        ),
        ([(1, 10, 20, 130), (2, 150, 160, 190)], {(KERNEL, 1): 30, DRIVER: 70}),
        ([(1, 10, 20, 130), (2, 20, 120, 180)], {(KERNEL, 1): 20, (KERNEL, 2): 60, DRIVER: 20}),
        ([(1, 10, 110, 180), (2, 20, 120, 130)], {IDLE: 10, (KERNEL, 1): 70, DRIVER: 20}),
        ([(1, 10, 110, 180), (2, 20, 110, 180)], {IDLE: 10, (KERNEL, 1): 70, DRIVER: 20}),
        ([(1, 10, 200, 300)], {IDLE: 100}),
        ([(1, 10, 150, 150)], {DRIVER: 50, IDLE: 50}),
    ],
)
def test_pieces_of_a_wait(runs: Runs, expected: dict[tuple[Leaf, int], int]) -> None:
    """What ran has its kernel, what came before the last of it is idle, and what came after is the driver's."""
    scene = Scene()
    for name, at, start, end in runs:
        scene.run(name, at, start, end, stream=A)
    scene.call("cuStreamSynchronize", 100, 200, stream=A)
    assert by_leaf(explain(scene)) == expected


def test_of_several_at_once_the_one_that_ends_last_is_waited_for() -> None:
    """A wait for a context names, at each moment, what of all its streams ends last."""
    scene = Scene()
    scene.run(1, 10, 110, 150, stream=A)
    scene.run(2, 10, 120, 140, stream=B)
    scene.run(3, 10, 130, 190, stream=C)
    scene.call("cuCtxSynchronize", 100, 200)
    rows = explain(scene)
    assert by_leaf(rows) == {IDLE: 10, (KERNEL, 1): 20, (KERNEL, 3): 60, DRIVER: 10}


def test_a_row_is_about_the_wait() -> None:
    """Stack, span, thread and process are those of the wait; kernel and device those of what ran."""
    scene = Scene()
    scene.run(1, 10, 20, 150, stream=A, device=3, stack_hash=(8, 9))
    fields: dict[str, Any] = {"stack_hash": (5, 6), "span_id": 7, "trace_id": 4, "tid": SECOND}
    scene.call("cuStreamSynchronize", 100, 200, stream=A, voluntary_switches=1, **fields)
    running, after = explain(scene)
    for row in (running, after):
        assert row["stack_hash"].tolist() == [5, 6]
        assert set(row["span_id"].tolist()) == {7}
        assert set(row["trace_id"].tolist()) == {4}
        assert (row["tid"], row["time_ns"], row["mode"]) == (SECOND, 200, WaitMode.BLOCKED)
        assert row["measure"] == Measure.GPU_WAIT
        assert row["flags"] & CallFlag.RETURNED
        assert row["api"] == apis.BY_NAME["cuStreamSynchronize"].id
    assert (running["device"], running["name"], running["leaf_api"]) == (3, 1, 0)
    assert (after["device"], after["name"]) == (NO_DEVICE, 0)


@pytest.mark.parametrize(
    ("api", "detail", "leaf"),
    [
        ("cuMemcpyHtoDAsync", 1, "cuMemcpyHtoD"),
        ("cuMemcpyAsync", 2, "cuMemcpyDtoH"),
        ("cuMemcpyAsync", 0, "cuMemcpyAsync"),
        ("cuMemcpyAsync", 9, "cuMemcpy"),
        ("cuMemcpyAsync", 200, "cuMemcpyAsync"),
        ("cuMemcpyPeerAsync", 10, "cuMemcpyPeer"),
        ("cuMemsetD32Async", 0, "cuMemsetD8"),
        ("clEnqueueReadBuffer", 0, "clEnqueueReadBuffer"),
    ],
)
def test_a_copy_says_what_it_copied(api: str, detail: int, leaf: str) -> None:
    """Copies and sets have no name at the leaf, but the API that says what they do."""
    scene = Scene()
    scene.run(1, 10, 20, 200, stream=A, api=api, detail=detail)
    scene.call("cuStreamSynchronize", 100, 200, stream=A)
    (row,) = explain(scene)
    assert (row["leaf_api"], row["name"]) == (apis.BY_NAME[leaf].id, 0)


def test_a_wait_that_polled_was_spinning() -> None:
    """The mode is that of the wait, on all its pieces."""
    scene = Scene()
    scene.run(1, 10, 120, 150, stream=A)
    scene.call("cuStreamSynchronize", 100, 200, stream=A)
    assert set(explain(scene)["mode"].tolist()) == {WaitMode.SPIN}


def test_waits_for_nothing_known_are_the_drivers() -> None:
    """A wait without any work that it could wait for is the driver's, whatever else ran."""
    scene = Scene()
    scene.run(1, 10, 20, 150, stream=A)
    scene.call("cuStreamSynchronize", 100, 200, stream=A)
    scene.call("cuStreamSynchronize", 100, 200, stream=C)
    assert by_leaf(explain(scene)) == {(KERNEL, 1): 50, DRIVER: 150}


runs = st.tuples(
    st.sampled_from([A, B, C]), st.integers(0, 60), st.integers(0, 30), st.integers(0, 40)
)
waits = st.tuples(
    st.sampled_from(["cuCtxSynchronize", "cuStreamSynchronize", "cuMemFree"]),
    st.sampled_from([A, B, C]),
    st.integers(0, 100),
    st.integers(0, 60),
)


def _expected(scene: Scene) -> list[Counter[tuple[Leaf, int]]]:
    """For each wait, one nanosecond after another."""
    executions = {int(each["name"]): each for each in scene.joined()}
    expected = []
    for wait, names in zip(scene.waits(), scene.waited_for(), strict=True):
        found: Counter[tuple[Leaf, int]] = Counter()
        mine = [executions[name] for name in sorted(names)]
        last = max(
            (int(each["end_ns"]) for each in mine if each["end_ns"] > wait["start_ns"]), default=0
        )
        for now in range(int(wait["start_ns"]), int(wait["end_ns"])):
            running = [each for each in mine if each["start_ns"] <= now < each["end_ns"]]
            if running:
                end = max(int(each["end_ns"]) for each in running)
                found[KERNEL, end] += 1
            else:
                found[IDLE if now < last else DRIVER] += 1
        expected.append(found)
    return expected


@settings(max_examples=60, deadline=None)
@given(st.lists(runs, max_size=12), st.lists(waits, max_size=4))
def test_every_nanosecond_of_a_wait_is_explained_once(
    executions: list[tuple[int, int, int, int]], calls: list[tuple[str, int, int, int]]
) -> None:
    """For any work and waits the pieces are those of asking at each nanosecond what runs, and Σ is the duration."""
    scene = Scene()
    for name, (stream, at, after, length) in enumerate(executions, start=1):
        start = at + after
        scene.run(name, at, start, start + length, stream=stream)
    for place, (api, stream, at, length) in enumerate(calls):
        scene.call(api, at, at + length, stream=stream, tid=1_000 + place)
    rows = explain(scene)
    ends = {int(each["name"]): int(each["end_ns"]) for each in scene.joined()}
    assert (rows["value_ns"] > 0).all()
    for place, expected in enumerate(_expected(scene)):
        found: Counter[tuple[Leaf, int]] = Counter()
        for row in rows[rows["tid"] == 1_000 + place]:
            is_kernel = row["leaf"] == KERNEL
            found[Leaf(row["leaf"]), ends[int(row["name"])] if is_kernel else 0] += int(
                row["value_ns"]
            )
        assert found == expected
    assert int(rows["value_ns"].sum()) == sum(length for *_, length in calls)


def test_times_of_any_size_add_up() -> None:
    """Times that a program made up, as far apart as 64 bits allow, do not change that Σ is exact."""
    scene = Scene()
    scene.run(1, 10, 20, 150, stream=A)
    scene.run(2, 2**63, 2**63 + 10, 2**64 - 2, stream=B, tgid=9)
    scene.run(3, 2, 3, 2**63, stream=C, tgid=9)
    scene.call("cuStreamSynchronize", 100, 200, stream=A)
    scene.call("cuCtxSynchronize", 2**63, 2**63 + 500, tgid=9)
    found = by_leaf(explain(scene))
    assert found == {(KERNEL, 1): 50, DRIVER: 50, IDLE: 10, (KERNEL, 2): 490}


def test_no_waits() -> None:
    """Nothing to explain gives no rows."""
    found = explain(Scene())
    assert (len(found), found.dtype) == (0, ATTRIBUTION)
