# SPDX-License-Identifier: Apache-2.0
"""Every supported CPython shows its own function names and lines; an older one says why it does not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import FrameKind, StackKey
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.integration.bpf.recording import Recording, app, total
from tests.integration.bpf.session import attach_and_record
from tests.interpreters import SUPPORTED, interpreter, interpreters
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

REFUSED = ("3.8", "3.9")


def record_plain_wait(output: Path, version: str, environment: dict[str, str]) -> Recording:
    """Record the same program under a Python of this version; skips where there is none."""
    python = interpreter(version, "bpf")
    without_packages = {k: v for k, v in environment.items() if not k.startswith("PYTHON")}
    command = app("plain_wait", python=python)
    recording = attach_and_record(output, command, without_packages)
    assert recording.truth["version"].startswith(f"{version}.")
    assert len(recording.capture.kind(Kind.WAIT)) == 3
    return recording


@pytest.mark.parametrize("version", SUPPORTED)
def test_python_frames_are_those_of_the_interpreter(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """Names and lines of all frames are what the interpreter itself says, through lambdas and generators."""
    recording = record_plain_wait(output, version, environment)
    stacks = {tuple(map(tuple, stack)) for stack in recording.truth["stacks"]}
    assert {tuple(sample.python()) for sample in recording.samples(GPU_WAIT)} == stacks
    assert not [m for s in recording.samples(GPU_WAIT) for m in s.marks() if "Python" in m]


@pytest.mark.parametrize("version", SUPPORTED)
def test_code_that_is_made_where_other_code_was_has_its_own_name(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """Functions of exec() in a loop often get the same address with the same instructions, one after the other."""
    command = app("reused_code", "--hold", python=interpreter(version, "bpf"))
    recording = attach_and_record(output, command, environment)
    functions, places = recording.truth["functions"], recording.truth["places"]
    assert places < functions
    launched = Counter(
        name
        for sample in recording.samples(GPU_LAUNCH)
        for name, _ in sample.python()
        if name.startswith("generated_")
        for _ in range(sample.value)
    )
    assert launched == {f"generated_{number}": 1 for number in range(functions + 1)}


@pytest.mark.parametrize("options", [(), ("--unwind",)], ids=["plain", "unwind"])
@pytest.mark.parametrize("version", SUPPORTED)
def test_frames_of_another_interpreter_stand_above_those_that_entered_it(
    version: str, options: tuple[str, ...], output: Path, environment: dict[str, str]
) -> None:
    """Two interpreters in one process, in the main thread and in another: the whole stack, through both."""
    command = app(
        "other_interpreter", output.with_suffix(".json"), python=interpreter(version, "bpf")
    )
    recording = attach_and_record(output, command, environment, "--no-cpu", *options)
    assert recording.truth["version"].startswith(f"{version}.")
    seen = {}
    for row in recording.capture.kind(Kind.LAUNCH):
        frames = recording.capture.stacks[StackKey(*row["stack_hash"].tolist())].frames
        python = [(f.name, f.line) for f in frames if f.kind is FrameKind.PYTHON]
        seen[int(row["grid"][0])] = python
    truth = [[tuple(frame) for frame in stack] for stack in recording.truth["stacks"]]
    assert {1: truth[0], 2: truth[1]} == seen


@pytest.mark.parametrize("version", REFUSED)
def test_an_interpreter_that_is_too_old_is_named(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """Waits are complete without Python frames, and a frame at the root names the version."""
    recording = record_plain_wait(output, version, environment)
    samples = recording.samples(GPU_WAIT)
    assert total(samples) > 0
    for sample in samples:
        assert sample.python() == []
        assert sample.frames[0].kind is FrameKind.MARK
        assert sample.frames[0].name.startswith(f"[no Python frames: CPython {version} is not supp")
        assert any(frame.kind is FrameKind.NATIVE for frame in sample.frames[:-2])


def test_some_supported_interpreter_is_here() -> None:
    """At least one version can be tested, so that skipping all of them does not look like passing."""
    require("bpf", any(map(interpreters, SUPPORTED)), f"none of Python {', '.join(SUPPORTED)}")
