# SPDX-License-Identifier: Apache-2.0
"""Backward work belongs to whoever called `backward()`: Python frames and span, in whatever way passes overlap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry import trace

from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.events.frames import FrameKind, Stack, StackKey
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.symbolize.stacks import PYTHON_NO_OWNER, PYTHON_TRUNCATED
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import Capture, Recording, app
from tests.integration.bpf.session import attach_and_record, running
from tests.interpreters import SUPPORTED, interpreter

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


_LEAST_FRAMES: Final = 60
"""Of 128: from CPython 3.12 on, each call from C takes the place of one more."""
_PACKAGES: Final = Path(trace.__file__).parents[2]


@pytest.fixture(scope="module", params=SUPPORTED)
def recording(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
) -> Recording:
    """Three threads that train at once, recorded from before their first call to their end."""
    python = interpreter(request.param, "bpf")
    output = tmp_path_factory.mktemp("autograd") / "test.ogfcap"
    # The OpenTelemetry SDK is the same code for all of them.
    path = f"{environment['PYTHONPATH']}{os.pathsep}{_PACKAGES}"
    command = app("autograd", "--hold", python=python)
    found = attach_and_record(output, command, {**environment, "PYTHONPATH": path})
    assert found.truth["publishes"] is True
    assert found.truth["errors"] == []
    return found


def python_of(stack: Stack) -> list[list[object]]:
    """[file name, line] of the Python frames, root first."""
    python = [frame for frame in stack.frames if frame.kind is FrameKind.PYTHON]
    return [[os.path.basename(frame.file), frame.line] for frame in python]


def launches(recording: Recording) -> dict[str, tuple[Any, Stack]]:
    """The one launch of each kernel, by name: its row and its stack."""
    names = {name.handle: name.name for name in recording.capture.names}
    found = {}
    for row in recording.capture.kind(Kind.LAUNCH):
        name = names[int(row["object"])]
        assert name not in found
        found[name] = (row, recording.capture.stacks[StackKey(*row["stack_hash"].tolist())])
    return found


def test_passes_overlap_nest_fail_and_use_memory_again(recording: Recording) -> None:
    """The program does what makes owners hard to tell."""
    truth = recording.truth
    assert truth["nested"] > 100
    assert truth["failed"] > 20
    assert truth["distinct_tasks"] < truth["passes"] // 2


def test_every_launch_is_under_the_python_line_that_it_is_on_behalf_of(
    recording: Recording,
) -> None:
    """Nodes, hooks, work after the last node, forward passes: exactly the frames of the truth.

    Of those that are deeper than a stack has room for, the ones next to the call.
    """
    truth, found = recording.truth, launches(recording)
    assert found.keys() == truth["kernels"].keys()
    wrong, truncated = {}, 0
    for name, (chain, _span) in truth["kernels"].items():
        stack, expected = found[name][1], truth["chains"][chain]
        if PYTHON_TRUNCATED in stack.frames:
            truncated += 1
            expected = expected[-max(len(python_of(stack)), _LEAST_FRAMES) :]
        if python_of(stack) != expected:
            wrong[name] = (python_of(stack), expected)
    assert wrong == {}
    assert truncated > 10
    assert all(PYTHON_NO_OWNER not in stack.frames for _row, stack in found.values())


def test_every_launch_is_on_the_span_that_it_is_on_behalf_of(recording: Recording) -> None:
    """A hook's own span, else that of the thread that called `backward()`, else none."""
    found = launches(recording)
    spans = {}
    for name, (row, _stack) in found.items():
        has_span = row["flags"] & CallFlag.HAS_SPAN
        spans[name] = row["span_id"].tobytes().hex() if has_span else ""
    wrong = {
        name: (spans[name], span)
        for name, (_chain, span) in recording.truth["kernels"].items()
        if spans[name] != span
    }
    assert wrong == {}


def test_native_frames_of_the_engine_follow_the_owner(recording: Recording) -> None:
    """Under the line that called `backward()` come the frames of the device's own thread."""
    _row, stack = next(found for name, found in launches(recording).items() if "node" in name)
    kinds = [frame.kind for frame in stack.frames if frame.kind is not FrameKind.MARK]
    first_native = kinds.index(FrameKind.NATIVE)
    assert set(kinds[first_native:]) == {FrameKind.NATIVE}
    assert any("evaluate_function" in frame.name for frame in stack.frames)


def test_passes_are_counted(recording: Recording) -> None:
    """Each pass was noted, and no launch looked for one in vain."""
    counts = recording.capture
    assert counts.count("backward", "seen") == recording.truth["passes"]
    assert counts.count("backward", "sent") == recording.truth["passes"]
    assert counts.count("backward", "unreadable") == 0


def test_a_wait_between_windows_finds_its_owner(environment: dict[str, str]) -> None:
    """Nodes are probed with launches only; from the first one seen on it is known where to look."""
    rare = BudgetOptions(duty=1e-12)
    with running(app("autograd_phases", "--hold"), {**environment, STAYS: "1"}) as target:
        pid = target.truth()["pid"]
        with LiveCapture(LiveOptions(pids=(pid,), budget=rare)) as live:
            events = [live.start_event()]
            live.probing.open_window()
            for phase in (1, 2):
                target.go()
                target.truth(phase)
                live.probing.close_window()
                events += live.step(0)
            target.go()
            assert target.finish() == 0, target.stderr.text()
            events += live.finish()
        truths = [target.truth(phase) for phase in (1, 2)]
    capture = Capture(events)
    assert len(capture.kind(Kind.LAUNCH)) == 2
    waits = capture.kind(Kind.WAIT)
    assert [row["span_id"].tobytes().hex() for row in waits] == [t["span_id"] for t in truths]
    for row, truth in zip(waits, truths, strict=True):
        python = python_of(capture.stacks[StackKey(*row["stack_hash"].tolist())])
        # On top are the hook's own.
        assert [line for _file, line in python][: len(truth["lines"])] == truth["lines"]
