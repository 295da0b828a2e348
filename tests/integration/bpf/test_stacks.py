# SPDX-License-Identifier: Apache-2.0
"""Python frames where they are hard to find, and stacks that must not be taken for one another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import app_command, build_fakes, fake_environment
from tests.integration.bpf.recording import app, record, total
from tests.integration.bpf.session import attach_and_record
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


@pytest.mark.parametrize("shape", ["many_threads", "subinterpreter"])
def test_frames_are_found_whatever_else_the_interpreter_holds(
    shape: str, output: Path, environment: dict[str, str]
) -> None:
    """The main thread behind 400 newer ones, or with a newer interpreter, has its frames."""
    recording = attach_and_record(output, app("odd_stacks", shape, "--hold"), environment)
    truth = recording.truth
    assert truth["launches"] == 1
    (wait,) = recording.samples(GPU_WAIT)
    names = [name for name, _ in wait.python()]
    assert (truth["function"], truth["line"]) in wait.python()
    assert names[:3] == ["<module>", "run", "main"]


def test_a_stack_that_is_too_deep_keeps_its_leaf_and_says_so(
    output: Path, environment: dict[str, str]
) -> None:
    """The 128 innermost frames are kept; a mark stands at the root instead of the others."""
    recording = attach_and_record(output, app("odd_stacks", "deep", "--hold"), environment)
    (wait,) = recording.samples(GPU_WAIT)
    assert wait.frames[0].name == "[Python stack truncated]"
    assert len(wait.python()) == 128
    assert (recording.truth["function"], recording.truth["line"]) in wait.python()


def test_equal_addresses_before_and_after_exec_are_not_one_stack(
    output: Path, environment: dict[str, str]
) -> None:
    """Without address space randomisation two programs of one process share addresses, not frames."""
    require("bpf", shutil.which("setarch") is not None, "setarch (util-linux) is missing")
    fixed = {**environment, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["setarch", "-R", *app("two_programs", 1)]
    recording = record(output, *command, environment=fixed)
    first, second = recording.truths
    assert first["pid"] == second["pid"]
    launches = recording.samples(GPU_LAUNCH)
    functions = [name for sample in launches for name, _ in sample.python()]
    assert functions.count("in_program_1") == functions.count("in_program_2") == 1
    assert total(launches) == 2


@pytest.mark.parametrize("frame_pointers", [True, False])
def test_a_driver_with_endbr64_is_counted_and_measured(frame_pointers: bool, output: Path) -> None:
    """Probes behind endbr64, in code with or without frame pointers, see every call and its return."""
    fakes = build_fakes(cf_protection="full", frame_pointers=frame_pointers)
    log = output.with_suffix(".log")
    environment = fake_environment(fakes, FAKE_CUDA_LOG=str(log))
    recording = record(output, *app_command("app_wait", 50, 5), environment=environment)
    truth = recording.truth
    assert len(recording.capture.kind(Kind.LAUNCH)) == len(recording.capture.kind(Kind.WAIT)) == 5
    assert recording.capture.pending() == {}
    assert 0 < total(recording.samples(GPU_WAIT)) <= sum(truth["duration_ns"])
    for sample in recording.samples(GPU_WAIT):
        assert (truth["function"], truth["line"]) in sample.python()
