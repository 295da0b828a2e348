# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own engine, on the CPU: `OGF_TORCH_PYTHON` names an interpreter that has it, where this one has not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from otel_gpuflame.events.frames import FrameKind, StackKey
from otel_gpuflame.events.wire import Kind
from tests.integration.bpf.recording import Recording, app
from tests.integration.bpf.session import attach_and_record

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

_MAX_FRAMES: Final = 128


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """Passes in one another, recorded from the first to the last."""
    python = os.environ.get("OGF_TORCH_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("torch is not installed: see OGF_TORCH_PYTHON")
    output = tmp_path_factory.mktemp("torch") / "test.ogfcap"
    return attach_and_record(output, app("torch_nested", "--hold", python=python), environment)


def test_every_pass_is_seen(recording: Recording) -> None:
    """The probes are on the functions that the engine runs, and read their arguments."""
    counts = recording.capture
    assert counts.count("backward", "seen") == recording.truth["passes"]
    assert counts.count("backward", "sent") == recording.truth["passes"]
    assert counts.count("backward", "unreadable") == 0


def test_launches_are_under_the_frames_of_the_thread_that_waits_for_them(
    recording: Recording,
) -> None:
    """Also where the engine has handed the pass to another thread; of very deep stacks the frames next to the call.

    A thread of the engine's pool has a Python thread state only while it is in Python, and another one each time. Its
    own frames may be missed for that, those of whom it works for never are.
    """
    truth, capture = recording.truth, recording.capture
    assert truth["handed_over"] >= 4
    names = {name.handle: name.name for name in capture.names}
    found = {}
    for row in capture.kind(Kind.LAUNCH):
        stack = capture.stacks[StackKey(*row["stack_hash"].tolist())]
        python = [frame for frame in stack.frames if frame.kind is FrameKind.PYTHON]
        found[names[int(row["object"])]] = [[Path(f.file).name, f.line] for f in python]
    assert found.keys() == truth["kernels"].keys()
    for name, frames in truth["kernels"].items():
        of_owner = frames[: len(frames) - truth["own"][name]]
        expected = [frames[-_MAX_FRAMES:]]
        if of_owner:
            expected.append(of_owner[-_MAX_FRAMES:])
        assert found[name] in expected
