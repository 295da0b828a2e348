"""The one flame graph: waiting, executing, queueing and idling under the lines that caused them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.model import Bundle, Profile, ValueType
from otel_gpuflame.profile.sample_types import (
    GPU_IDLE,
    GPU_QUEUE,
    GPU_TIME,
    GPU_VIEW,
    GPU_WAIT,
    OF_DEVICES,
)

_MARKS: Final = {
    GPU_WAIT: mark("waiting"),
    GPU_TIME: mark("executing"),
    GPU_QUEUE: mark("queued"),
    GPU_IDLE: mark("idle"),
}
_RESULTS: Final = frozenset({FrameKind.GPU, FrameKind.GPU_OPENCL, FrameKind.MARK})


def has_device_times(bundle: Bundle) -> bool:
    """Whether there is anything to see in the view that is not in `gpu_wait`."""
    return any(p.sample_type in OF_DEVICES and len(p.value) for p in bundle.profiles)


def with_gpu_view(bundle: Bundle) -> Bundle:
    """`bundle` with one more profile, of the type `gpu`, at the end.

    It has every sample of `gpu_wait`, `gpu_time`, `gpu_queue` and `gpu_idle`, with a mark that says which, put between
    the driver call and what came of it. Its total is the sum of their totals.
    """
    frames = {frame: index for index, frame in enumerate(bundle.frames)}
    stacks = {stack: index for index, stack in enumerate(bundle.stacks)}
    parts = [p for p in bundle.profiles if p.sample_type in _MARKS and len(p.value)]
    columns = []
    for profile in parts:
        kind = frames.setdefault(_MARKS[profile.sample_type], len(frames))
        columns.append(
            [
                stacks.setdefault(_marked(bundle, stack, kind), len(stacks))
                for stack in profile.stack.tolist()
            ]
        )
    view = _joined(parts, columns)
    return replace(
        bundle,
        frames=tuple(frames),
        stacks=tuple(stacks),
        profiles=(*bundle.profiles, view),
    )


def _marked(bundle: Bundle, stack: int, kind: int) -> tuple[int, ...]:
    """The stack with the mark `kind` above the driver call."""
    indexes = bundle.stacks[stack]
    place = call_depth([bundle.frames[index] for index in indexes])
    return (*indexes[:place], kind, *indexes[place:])


def call_depth(frames: Sequence[Frame]) -> int:
    """How many frames of a stack, from the root, are before what came of the call: kernels, reasons, ways to wait."""
    depth = len(frames)
    while depth and frames[depth - 1].kind in _RESULTS:
        if labels.stands_for_stack(frames[depth - 1]):
            break
        depth -= 1
    return depth


def _joined(parts: Sequence[Profile], stacks: Sequence[Sequence[int]]) -> Profile:
    """One profile of all samples. Marks tell those of different types apart, so none occurs twice."""
    none = np.zeros(0, np.int32)
    return Profile(
        sample_type=GPU_VIEW,
        stack=np.array([index for column in stacks for index in column], np.int32),
        link=np.concatenate([none, *(p.link for p in parts)]),
        attributes=np.concatenate([none, *(p.attributes for p in parts)]),
        value=np.concatenate([none.astype(np.int64), *(p.value for p in parts)]),
    )


def view_of(bundles: Sequence[Bundle], sample_type: ValueType) -> list[Bundle]:
    """`bundles` with what `sample_type` needs: the view is made where it is asked for."""
    return [with_gpu_view(b) if sample_type == GPU_VIEW else b for b in bundles]
