"""Which kernels ran with which shapes, and how much of a device these can fill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from otel_gpuflame.events.executions import DeviceInfo
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.events.records import Watermark
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import KernelUse
from otel_gpuflame.profile.occupancy import occupancy
from tests.unit.profile.builders import (
    DEVICE,
    OTHER,
    START_NS,
    devices,
    executed,
    execution,
    name_event,
    run,
    target_event,
    usual,
)

SHAPE: dict[str, Any] = {
    "name": 1,
    "grid": (7, 2, 1),
    "block": (64, 4, 1),
    "registers_per_thread": 40,
    "shared_bytes": 2048,
}
GEMM = Frame(FrameKind.GPU, "gemm")


def test_executions_of_one_shape_add_up() -> None:
    """A use has the shape, the device and the name of its executions, their number and their time."""
    rows = executed(*[execution(duration_ns=n, **SHAPE) for n in (100, 50)])
    (bundle,), _ = run([*usual(), devices(), name_event(1, "gemm"), rows])
    (use,) = bundle.kernels
    assert use == KernelUse(
        frame=GEMM,
        device=DEVICE,
        grid=(7, 2, 1),
        block=(64, 4, 1),
        registers_per_thread=40,
        shared_bytes=2048,
        executions=2,
        time_ns=150,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (7, 2, 2)},
        {"grid": (8, 2, 1)},
        {"grid": (7, 3, 1)},
        {"block": (32, 4, 1)},
        {"block": (64, 2, 1)},
        {"block": (64, 4, 2)},
        {"registers_per_thread": 255},
        {"shared_bytes": 2**32 - 1},
        {"name": 2},
    ],
)
def test_executions_of_different_shapes_are_told_apart(change: dict[str, Any]) -> None:
    """The one of more time comes first."""
    first, second = execution(**SHAPE), execution(duration_ns=200, **SHAPE | change)
    names = [name_event(1, "gemm"), name_event(2, "copy")]
    (bundle,), _ = run([*usual(), devices(), *names, executed(first, second, first, first)])
    assert [(use.executions, use.time_ns) for use in bundle.kernels] == [(3, 300), (1, 200)]


@pytest.mark.parametrize(
    "row",
    [
        execution(GpuKind.COPY),
        execution(GpuKind.API),
        execution(duration_ns=0),
        execution(start_ns=0),
        execution(duration_ns=-5),
        execution(device=77),
    ],
    ids=["copy", "launch", "no duration", "no time", "inverted", "device not known"],
)
def test_other_executions_are_left_out(row: np.ndarray) -> None:
    """Only kernels with times, on devices whose limits are known, can be judged."""
    bundles, _ = run([*usual(), devices(), executed(row)])
    assert [use for bundle in bundles for use in bundle.kernels] == []


def test_uses_belong_to_their_process_and_window() -> None:
    """An execution counts where it ends."""
    rows = executed(
        execution(start_ns=START_NS + 10, duration_ns=20),
        execution(start_ns=START_NS + 90, duration_ns=20),
        execution(start_ns=START_NS + 10, duration_ns=30, tgid=OTHER.tgid, process_start_ns=78),
    )
    events = [*usual(), target_event(OTHER, "b"), devices(), rows, Watermark(START_NS + 300)]
    bundles, _ = run(events, AggregateOptions(window_ns=100))
    found = [(dict(b.resource)["service.name"], b.kernels[0].time_ns) for b in bundles]
    assert sorted(found) == [("b", 30), ("train", 20), ("train", 20)]


def test_a_bundle_keeps_the_uses_of_most_time() -> None:
    """A program whose shapes vary does not make bundles grow without bound."""
    rows = np.repeat(execution(), 1_000)
    rows["grid"][:, 0] = np.arange(1_000)
    rows["end_ns"] += np.arange(1_000, dtype=np.uint64)
    (bundle,), _ = run([*usual(), devices(), executed(rows)])
    assert [use.grid[0] for use in bundle.kernels] == list(range(999, 999 - 64, -1))


def use(grid: int, block: int, registers: int = 32, shared_bytes: int = 0) -> KernelUse:
    """A use of that many blocks and threads, in one direction."""
    return KernelUse(
        frame=GEMM,
        device=DEVICE,
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        registers_per_thread=registers,
        shared_bytes=shared_bytes,
        executions=1,
        time_ns=1,
    )


@pytest.mark.parametrize(
    ("shape", "bound", "limited_by"),
    [
        (use(10_000, 256), 1.0, "threads"),
        (use(10_000, 1024), 1.0, "threads"),
        (use(10_000, 32), 0.5, "blocks"),
        (use(10_000, 1), 1 / 64, "blocks"),
        (use(10_000, 256, registers=255), 0.125, "registers"),
        (use(10_000, 256, registers=33), 0.75, "registers"),
        (use(10_000, 384, registers=168, shared_bytes=230_000), 384 / 2048, "registers"),
        (use(10_000, 384, registers=64, shared_bytes=230_000), 384 / 2048, "shared memory"),
        (use(132, 256), 0.125, "grid"),
        (use(1, 1), 1 / 132 / 2048, "grid"),
        (use(66, 1024), 0.25, "grid"),
        (use(10_000, 256, shared_bytes=300_000), 1.0, "threads"),
    ],
)
def test_occupancy_is_what_the_limits_allow(
    shape: KernelUse, bound: float, limited_by: str
) -> None:
    """What is scarcest decides; the device has the limits of an H200."""
    found = occupancy(shape)
    assert found is not None
    assert (round(found.bound, 9), found.limited_by) == (round(bound, 9), limited_by)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (0, 1, 1)},
        {"block": (0, 0, 0)},
        {"device": replace(DEVICE, multiprocessors=0)},
        {"device": DeviceInfo(index=1, uuid="", model="")},
    ],
)
def test_nothing_is_said_without_shape_or_limits(change: dict[str, object]) -> None:
    """OpenCL devices have no such limits."""
    assert occupancy(replace(use(10, 256), **change)) is None  # type: ignore[arg-type]


def test_limits_that_are_not_known_do_not_bound() -> None:
    """What an older library does not say is not taken for 0."""
    device = replace(
        DEVICE,
        registers_per_multiprocessor=0,
        shared_bytes_per_multiprocessor=0,
        blocks_per_multiprocessor=0,
    )
    found = occupancy(replace(use(10_000, 32, registers=255), device=device))
    assert found is not None
    assert (found.bound, found.limited_by) == (1.0, "threads")
