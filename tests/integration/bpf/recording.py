# SPDX-License-Identifier: Apache-2.0
"""Runs the recorder as a user does, and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    HandleName,
    Names,
    SourceCounters,
    Stacks,
    Targets,
    Watermark,
)
from otel_gpuflame.pipeline import ReplayResult, replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.ledger import CALL_KINDS, Account
from otel_gpuflame.profile.model import Bundle, Link, ValueType

ROOT: Final = Path(__file__).resolve().parents[3]
APPS: Final = Path(__file__).parent / "apps"
LIMIT_S: Final = 300
"""A recorder that has not ended by then hangs, however busy the machine is."""

Truth = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row of a profile with its tables looked up; frames root first."""

    frames: tuple[Frame, ...]
    link: Link | None
    value: int
    pid: int

    def python(self) -> list[tuple[str, int]]:
        """(function, line) of the Python frames, root first."""
        return [(f.name, f.line) for f in self.frames if f.kind is FrameKind.PYTHON]

    def marks(self) -> list[str]:
        """Texts of the frames that are no code."""
        return [f.name for f in self.frames if f.kind is FrameKind.MARK]


class Capture:
    """A whole capture file: its events, and its profile."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.rows: CallArray = np.concatenate(
            [np.empty(0, wire.CALL), *(e.rows for e in events if isinstance(e, Calls))]
        )
        kinds = self.rows["kind"]
        self.calls: CallArray = self.rows[(kinds >= wire.Kind.LAUNCH) & (kinds <= wire.Kind.FREE)]
        """Calls of the GPU driver's API: without samples of threads and system calls."""
        self.stacks: dict[StackKey, Stack] = {
            stack.key: stack for e in events if isinstance(e, Stacks) for stack in e.stacks
        }
        self.names: list[HandleName] = [n for e in events if isinstance(e, Names) for n in e.names]
        self.targets = {
            info.process.tgid: dict(info.attributes)
            for e in events
            if isinstance(e, Targets)
            for info in e.targets
        }
        self.counters: dict[tuple[str, str], int] = {}
        for event in events:
            if isinstance(event, SourceCounters):
                self.counters.update({(c.kind, c.outcome): c.count for c in event.counts})

    def kind(self, kind: wire.Kind) -> CallArray:
        """Rows of one kind of call."""
        rows: CallArray = self.rows[self.rows["kind"] == kind]
        return rows

    def api(self, name: str) -> CallArray:
        """Rows of one driver function, whatever alias was called."""
        rows: CallArray = self.rows[self.rows["api"] == apis.BY_NAME[name].id]
        return rows

    def count(self, kind: str, outcome: str) -> int:
        """Last value of a counter of the source, 0 where it never occurred."""
        return self.counters.get((kind, outcome), 0)

    def assert_nothing_called(self) -> None:
        """No call of the GPU driver's API is in the file, nor did the source see one."""
        assert len(self.calls) == 0
        assert [count for count in self.counters if count[0] in CALL_KINDS] == []

    def pending(self) -> dict[str, int]:
        """Calls of each kind that were seen and neither sent nor dropped; checks the books.

        Every counter is the source's own, every row comes from the file: seen = rows + dropped +
        pending, and what was sent is what arrived.
        """
        pending = {}
        for kind in (k for k in wire.Kind if wire.Kind.LAUNCH <= k <= wire.Kind.DRIVER):
            name = kind.name.lower()
            by_outcome = {o: self.count(name, o.name.lower()) for o in wire.Outcome}
            seen = by_outcome.pop(wire.Outcome.SEEN)
            assert by_outcome[wire.Outcome.SENT] == len(self.kind(kind)), name
            rest = seen - sum(by_outcome.values())
            assert rest >= 0, (name, seen, by_outcome)
            if rest:
                pending[name] = rest
        return pending


@dataclass(frozen=True)
class Recording:
    """What one run of `record` left behind."""

    path: Path
    exit_code: int
    stdout: str
    stderr: str

    @property
    def truth(self) -> Truth:
        """The last JSON line that the recorded programs printed."""
        return self.truths[-1]

    @property
    def truths(self) -> list[Truth]:
        """Every JSON line that the recorded programs printed but those that say that one is ready."""
        lines = [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]
        return [truth for truth in lines if "ready" not in truth]

    @cached_property
    def capture(self) -> Capture:
        """The capture file."""
        with ReplaySource(self.path, call_dtype=wire.CALL) as source:
            capture = Capture(list(source.events()))
            assert source.damage is None, self.stderr
            return capture

    @cached_property
    def result(self) -> ReplayResult:
        """The profile of the whole capture, linked to innermost spans."""
        return self.replayed(SpanLink.ACTIVE)

    def replayed(self, link: SpanLink) -> ReplayResult:
        """The profile of the whole capture."""
        result = replay(self.path, AggregateOptions(window_ns=None, span_link=link))
        assert result.damage is None
        return result

    def length_ns(self) -> int:
        """From the start of the recording to the time up to which it is complete."""
        with ReplaySource(self.path) as source:
            times = [e.time_ns for e in source.events() if isinstance(e, CaptureStart | Watermark)]
        return max(times) - min(times)

    def account(self, kind: str) -> Account:
        """The books of one kind of call."""
        (account,) = [each for each in self.result.ledger.accounts() if each.kind == kind]
        return account

    def samples(self, sample_type: ValueType) -> list[Sample]:
        """All samples of one type, linked to innermost spans."""
        return samples_of(self.result.bundles, sample_type)


def samples_of(bundles: Sequence[Bundle], sample_type: ValueType) -> list[Sample]:
    """All samples of one type."""
    found = []
    for bundle in bundles:
        pid = int(dict(bundle.resource).get("process.pid", 0))
        for profile in bundle.profiles:
            if profile.sample_type != sample_type:
                continue
            columns = (profile.stack.tolist(), profile.link.tolist(), profile.value.tolist())
            for stack, link, value in zip(*columns, strict=True):
                frames = tuple(bundle.frames[index] for index in bundle.stacks[stack])
                span = bundle.links[link] if link >= 0 else None
                found.append(Sample(frames=frames, link=span, value=value, pid=pid))
    return found


def total(samples: Sequence[Sample]) -> int:
    """Sum of the values."""
    return sum(sample.value for sample in samples)


def record_command(output: Path, *arguments: object, options: Sequence[object] = ()) -> list[str]:
    """Command line of the recorder; `arguments` are what comes after `--` or `--pid PID`."""
    flags = [str(option) for option in options]
    rest = [str(argument) for argument in arguments]
    separator = ["--"] if rest else []
    return [
        *(sys.executable, "-m", "otel_gpuflame", "-v", "record", "-o", str(output)),
        *flags,
        *separator,
        *rest,
    ]


def record(
    output: Path,
    *command: object,
    environment: Mapping[str, str] | None = None,
    options: Sequence[object] = (),
) -> Recording:
    """Record a command to its end."""
    done = subprocess.run(
        record_command(output, *command, options=options),
        env=None if environment is None else dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Recording(output, done.returncode, done.stdout, done.stderr)


def app(
    name: str, *arguments: object, python: str | os.PathLike[str] = sys.executable
) -> list[str]:
    """Command line of a target program of this folder."""
    return [str(python), str(APPS / f"{name}.py"), *map(str, arguments)]
