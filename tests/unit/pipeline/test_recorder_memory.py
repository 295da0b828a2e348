"""A recording takes no more memory the longer it lasts, however many stacks it meets."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np

from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey
from otel_gpuflame.events.records import Calls, Event, Stacks, StacksForgotten, Watermark
from otel_gpuflame.pipeline.recording import Recorder
from otel_gpuflame.profile.sample_types import GPU_WAIT
from otel_gpuflame.profile.top import total
from tests.unit.profile.builders import PROCESS, START, START_NS, call

DEPTH, STACKS, WINDOW_NS = 30, 500, 10_000_000_000
WINDOWS = 10
FRAMES = [Frame(FrameKind.PYTHON, f"f{n}", file="/srv/app/train.py", line=n) for n in range(400)]


def stacks_of(window: int) -> list[Stack]:
    """Stacks that no other window has, of frames that all have."""
    numbers = np.random.default_rng(window).integers(0, len(FRAMES), (STACKS, DEPTH)).tolist()
    return [
        Stack(StackKey(window + 1, index), PROCESS, tuple(FRAMES[n] for n in row))
        for index, row in enumerate(numbers)
    ]


def waits_of(window: int) -> Calls:
    """One under each of its stacks."""
    rows = np.repeat(call("cuStreamSynchronize", duration_ns=1_000), STACKS)
    rows["start_ns"] += np.uint64(window * WINDOW_NS)
    rows["end_ns"] += np.uint64(window * WINDOW_NS)
    rows["stack_hash"][:, 0] = window + 1
    rows["stack_hash"][:, 1] = np.arange(STACKS)
    return Calls(rows)


def events(window: int, waits: Calls) -> Iterator[Event]:
    """Ten seconds; then the stacks are let go, as the live source does with old ones."""
    yield Stacks(tuple(stacks_of(window)))
    yield waits
    yield StacksForgotten(tuple(StackKey(window + 1, index) for index in range(STACKS)))
    yield Watermark(START_NS + (window + 1) * WINDOW_NS)


def test_memory_does_not_grow_with_the_number_of_stacks() -> None:
    """After three windows there is as much as after ten: stacks go with the window that used them."""
    recorder = Recorder(None, {})
    recorder.take([START])
    # Made before: the last 65,536 calls are kept, whatever their stacks.
    waits = [waits_of(window) for window in range(WINDOWS)]
    used_bytes = []
    tracemalloc.start()
    try:
        for window in range(WINDOWS):
            recorder.take(events(window, waits[window]))
            gc.collect()
            used_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    of_a_window = used_bytes[0]
    assert used_bytes[-1] - used_bytes[2] < of_a_window / 4, used_bytes
    recorder.close()
    bundles = recorder.digest.bundles()
    assert total(bundles, GPU_WAIT) == WINDOWS * STACKS * 1_000
    assert len(bundles[0].stacks) <= len(FRAMES)
