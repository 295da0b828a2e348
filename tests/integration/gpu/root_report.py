"""What recordings say of where GPU time comes from: Python roots, whole native stacks, forward and backward lines."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.events.frames import Frame, FrameKind, StackKey
from otel_gpuflame.events.records import Calls, Event, Stacks
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.top import innermost_python
from otel_gpuflame.symbolize.stacks import (
    NATIVE_CUT,
    NATIVE_TRUNCATED,
    PYTHON_CUT,
    PYTHON_TRUNCATED,
)

MAX_WITHOUT_PYTHON: Final = 0.01
MIN_WHOLE: Final = 0.99
LINES: Final = {"train": ("model(batch)", "loss.backward()", "optimizer.step()")}
"""Of gpu_workloads.py: what each has to have some of the time under it."""
_BACKWARD: Final = "loss.backward()"
_ENGINE: Final = "torch::autograd::Engine::"
_NOT_WHOLE: Final = {NATIVE_CUT, NATIVE_TRUNCATED, PYTHON_CUT, PYTHON_TRUNCATED}
Samples = Iterable[tuple[list[Frame], int]]


def report_roots(name: str, samples: Samples) -> dict[str, Any]:
    """Of a workload's stacks, root first, with their nanoseconds: shares of time."""
    total = without = backward_elsewhere = 0
    by_line: Counter[str] = Counter()
    for frames, value in samples:
        line = text_of(innermost_python(frames))
        total += value
        without += value * (not _has(frames, FrameKind.PYTHON))
        by_line[line] += value
        is_backward = any(_ENGINE in frame.name for frame in frames)
        backward_elsewhere += value * (is_backward and _BACKWARD not in line)
    lines = {
        wanted: sum(value for text, value in by_line.items() if wanted in text) / max(total, 1)
        for wanted in LINES.get(name, ())
    }
    without_python = without / max(total, 1)
    elsewhere = backward_elsewhere / max(total, 1)
    return {
        "ok": total > 0
        and max(without_python, elsewhere) <= MAX_WITHOUT_PYTHON
        and all(lines.values()),
        "without_python": without_python,
        "backward_elsewhere": elsewhere,
        "lines": lines,
        "largest_lines": {text: value / total for text, value in by_line.most_common(5)},
    }


def report_whole(events: Iterable[Event], since_ns: int) -> dict[str, Any]:
    """How many launches since then have a stack from its root to the driver, and how many of their distinct stacks.

    Tables of large libraries are made when the first stack has gone through them, and stacks until then are cut.
    """
    stacks: dict[StackKey, tuple[Frame, ...]] = {}
    counts: Counter[StackKey] = Counter()
    for event in events:
        if isinstance(event, Stacks):
            stacks |= {stack.key: stack.frames for stack in event.stacks}
        elif isinstance(event, Calls):
            rows = event.rows
            chosen = rows[(rows["kind"] == Kind.LAUNCH) & (rows["start_ns"] >= since_ns)]
            counts.update(StackKey(*pair) for pair in chosen["stack_hash"].tolist())
    whole = {key for key in counts if key in stacks and not _NOT_WHOLE.intersection(stacks[key])}
    depths = sorted(_native(stacks[key]) for key in whole)
    launches, whole_launches = counts.total(), sum(counts[key] for key in whole)
    return {
        "ok": whole_launches > 0 and whole_launches >= MIN_WHOLE * launches,
        "launches": launches,
        "whole_launches": whole_launches,
        "stacks": len(counts),
        "whole_stacks": len(whole),
        "native_frames": [depths[len(depths) * part // 4] for part in (1, 2, 3)] if depths else [],
    }


def text_of(place: Frame) -> str:
    """The source of a line, else what is known of it."""
    text = linecache.getline(place.file, place.line).strip()
    return text or f"{place.name} {Path(place.file).name}:{place.line}"


def _has(frames: Sequence[Frame], kind: FrameKind) -> bool:
    return any(frame.kind is kind for frame in frames)


def _native(frames: Sequence[Frame]) -> int:
    return sum(frame.kind is FrameKind.NATIVE for frame in frames)
