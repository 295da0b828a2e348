"""Makes a capture small enough to be kept: without threads that gave devices nothing to do, and what only they need.

Usage: python -m tests.golden.trim IN OUT [--root PATH]

Left are all calls of the driver's library, all executions, and what launching threads did on and off the CPU from a
second before the first launch on. Names are demangled again. `--root`: where the sources lay, below which file names
begin.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.names import shorten
from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.frames import Frame, Stack
from otel_gpuflame.events.records import Calls, Event, HandleName, Names, SourceCounters, Stacks
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.symbolize.demangle import Demangler

BEFORE_NS: Final = 1_000_000_000
AT_ONCE_NS: Final = 3_600_000_000_000
"""One segment: no dictionary is written twice."""


def kept_rows(calls: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which of all calls are kept."""
    launches = calls[IS_SUBMISSION[calls["kind"]]]
    of_driver: NDArray[np.bool_] = calls["kind"] <= Kind.FREE
    is_late = calls["start_ns"] + BEFORE_NS >= launches["start_ns"].min()
    return of_driver | (is_late & np.isin(calls["tid"], launches["tid"]))


def trimmed(events: list[Event], root: str) -> Iterator[Event]:
    """The events that are left."""
    calls = np.concatenate([event.rows for event in events if isinstance(event, Calls)])
    is_kept = kept_rows(calls)
    stacks = {tuple(key) for key in calls["stack_hash"][is_kept].tolist()}
    done = 0
    for event in events:
        if isinstance(event, Calls):
            rows = event.rows[is_kept[done : done + len(event.rows)]]
            done += len(event.rows)
            if len(rows):
                yield Calls(rows)
        elif isinstance(event, Stacks):
            some = tuple(_below(each, root) for each in event.stacks if tuple(each.key) in stacks)
            if some:
                yield Stacks(some)
        elif isinstance(event, Names):
            yield Names(tuple(_demangled(each) for each in event.names))
        # The books of the recorder count what is left out too.
        elif not isinstance(event, SourceCounters):
            yield event


def _demangled(name: HandleName) -> HandleName:
    return replace(name, readable=shorten(Demangler().demangle(name.name)))


def _below(stack: Stack, root: str) -> Stack:
    return replace(stack, frames=tuple(_relative(frame, root) for frame in stack.frames))


def _relative(frame: Frame, root: str) -> Frame:
    if not root or not frame.file.startswith(root):
        return frame
    return frame._replace(file=frame.file[len(root) :].lstrip("/"))


def main() -> None:
    """One capture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", default="")
    options = parser.parse_args()
    with ReplaySource(options.capture, call_dtype=wire.CALL) as source:
        events = list(source.events())
    with options.out.open("wb") as file:
        writer = CaptureWriter(
            file, created={"trimmed": options.capture.name}, flush_after_ns=AT_ONCE_NS
        )
        for event in trimmed(events, options.root):
            writer.write(event)
        writer.close()


if __name__ == "__main__":
    main()
