# SPDX-License-Identifier: Apache-2.0
"""Every supported CPython shows its own function names and lines; an older one says why it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.integration.bpf.recording import Recording, app, total
from tests.integration.bpf.session import attach_and_record
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
REFUSED = ("3.8", "3.9")


def interpreters(version: str) -> list[Path]:
    """Pythons of a minor version on this machine: pyenv's, else those of the search path."""
    found = [
        path
        for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
        if path.parents[1].name.startswith(f"{version}.")
    ]
    on_path = shutil.which(f"python{version}")
    return found or ([Path(on_path)] if on_path and runs(on_path, version) else [])


def runs(python: str, version: str) -> bool:
    """Whether it is a Python of that version: pyenv's shims exist for versions that are not there."""
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return re.match(rf"Python {re.escape(version)}\.", done.stdout) is not None


def record_plain_wait(output: Path, version: str, environment: dict[str, str]) -> Recording:
    """Record the same program under a Python of this version; skips where there is none."""
    found = interpreters(version)
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    without_packages = {k: v for k, v in environment.items() if not k.startswith("PYTHON")}
    command = app("plain_wait", python=found[0])
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
    found = interpreters(version)
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    recording = attach_and_record(
        output, app("reused_code", "--hold", python=found[0]), environment
    )
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
