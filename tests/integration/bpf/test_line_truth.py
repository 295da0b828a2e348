# SPDX-License-Identifier: Apache-2.0
"""Every Python frame of every launch is the interpreter's own: name, file and line, root to leaf.

A program launches below random chains of calls of 31 kinds, and asks for its stack on the line of the launch.
`OGF_LINE_TRUTH_SAMPLES` and `OGF_LINE_TRUTH_SEED` make other and more chains.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Final

import pytest

from otel_gpuflame.events.frames import FrameKind, StackKey
from otel_gpuflame.events.wire import Kind
from tests.integration.bpf.recording import app
from tests.integration.bpf.session import attach_and_record
from tests.interpreters import SUPPORTED, interpreter

pytestmark = [
    pytest.mark.bpf,
    pytest.mark.usefixtures("bpf_tier"),
    pytest.mark.timeout(1_200),
]

SAMPLES: Final = int(os.environ.get("OGF_LINE_TRUTH_SAMPLES", "10000"))
SEED: Final = os.environ.get("OGF_LINE_TRUTH_SEED", "1")

Place = tuple[str, str, int]


def truth_of(path: Path) -> list[tuple[Place, ...]]:
    """The stack of each launch, as the program has written it."""
    said = json.loads(path.read_text())
    frames: list[Place] = [(name, file, line) for name, file, line in said["frames"]]
    stacks = [tuple(frames[index] for index in stack) for stack in said["stacks"]]
    return [stacks[index] for index in said["samples"]]


def difference(seen: tuple[Place, ...], true: tuple[Place, ...]) -> tuple[object, object]:
    """Both from the first frame on in which they differ, three frames each."""
    same = sum(1 for _ in itertools.takewhile(all_equal, zip(seen, true, strict=False)))
    return seen[same : same + 3], true[same : same + 3]


def all_equal(pair: tuple[Place, Place]) -> bool:
    """Whether both are one place."""
    return pair[0] == pair[1]


def check(
    version: str, output: Path, environment: dict[str, str], samples: int, *options: str
) -> None:
    """Record the program under a version, and compare all of its launches."""
    log = output.with_suffix(".json")
    command = [*app("line_truth", log, samples, python=interpreter(version, "bpf"))]
    settings = {"LINE_TRUTH_SEED": SEED}
    recording = attach_and_record(output, command, {**environment, **settings}, *options)
    assert recording.truth["version"].startswith(f"{version}.")
    assert recording.truth["deepest"] > 30
    truth = truth_of(log)
    assert len(truth) == samples
    assert len(set(truth)) > samples // 2
    launches = recording.capture.kind(Kind.LAUNCH)
    assert sorted(launches["grid"][:, 0].tolist()) == list(range(1, samples + 1))
    stacks = recording.capture.stacks
    wrong = []
    for number, key in zip(
        launches["grid"][:, 0].tolist(), launches["stack_hash"].tolist(), strict=True
    ):
        frames = stacks[StackKey(*key)].frames
        seen = tuple((f.name, f.file, f.line) for f in frames if f.kind is FrameKind.PYTHON)
        if seen != truth[number - 1]:
            wrong.append((number, *difference(seen, truth[number - 1])))
    assert not wrong, (
        f"{len(wrong)} of {samples} differ: launch, seen and true from there on, {wrong[0]}"
    )


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_frame_of_every_launch_is_the_interpreters_own(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """Whole stacks of 10,000 launches, most of them distinct, in four threads and in short-lived ones."""
    check(version, output, environment, SAMPLES, "--no-cpu")


@pytest.mark.parametrize("version", SUPPORTED)
def test_native_frames_in_between_change_nothing(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """The same with whole native stacks, where Python frames are put between the runs of the interpreter's loop."""
    check(version, output, environment, SAMPLES // 5, "--no-cpu", "--unwind")
