# SPDX-License-Identifier: Apache-2.0
"""The Python line that waits for the GPU holds the wait, as long as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_WAIT
from otel_gpuflame.profile.top import top_python_lines
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, record, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

MS, REPEAT = 20, 23


def record_wait(output: Path, environment: dict[str, str], *flags: str) -> tuple[Recording, int]:
    """Record app_wait; the recording, and the ns that its waits took inside the driver."""
    log = output.with_suffix(".log")
    command = app_command("app_wait", MS, REPEAT, *flags)
    recording = record(output, *command, environment={**environment, "FAKE_CUDA_LOG": str(log)})
    assert recording.exit_code == 0, recording.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    inside_ns = sum(c["ns"] for c in calls if c["api"] == "cuStreamSynchronize")
    return recording, inside_ns


@pytest.mark.parametrize(("flags", "mode"), [((), "[blocked]"), (("--spin",), "[spin]")])
def test_the_waiting_line_holds_the_whole_wait(
    flags: tuple[str, ...], mode: str, output: Path, environment: dict[str, str]
) -> None:
    """All of the wait is on the marked line, in the right mode, and within 2 % of the program's own measure.

    It lies between the time inside the driver and the time that the program measured around the call.
    """
    recording, inside_ns = record_wait(output, environment, *flags)
    truth = recording.truth
    samples = recording.samples(GPU_WAIT)
    measured_ns = sum(truth["duration_ns"])
    assert len(recording.capture.kind(Kind.WAIT)) == truth["waits"] == REPEAT
    assert recording.capture.pending() == {}
    assert all((truth["function"], truth["line"]) in sample.python() for sample in samples)
    assert {sample.frames[-1].name for sample in samples} == {mode}
    assert {sample.frames[-2].name for sample in samples} == {"cuStreamSynchronize"}
    assert inside_ns <= total(samples) <= measured_ns
    assert total(samples) >= 0.98 * measured_ns


def test_frames_go_from_the_module_to_the_driver_call(
    output: Path, environment: dict[str, str]
) -> None:
    """The stack starts at the script's module and has the program's functions in calling order."""
    recording, _ = record_wait(output, environment)
    (sample,) = recording.samples(GPU_WAIT)
    names = [name for name, _ in sample.python()]
    assert names[0] == "<module>"
    order = [names.index(name) for name in ("main", "timed_wait", "wait_for_gpu")]
    assert order == sorted(order)
    files = {f.file for f in sample.frames if f.name == "wait_for_gpu"}
    assert files == {recording.truth["file"]}


def test_the_summary_names_the_line(output: Path, environment: dict[str, str]) -> None:
    """The first table of `record` shows where the wait is, with the innermost Python line."""
    recording, _ = record_wait(output, environment)
    (row,) = top_python_lines(recording.result.bundles, GPU_WAIT)
    assert row.frame.name in recording.stderr
    assert f"{Path(row.frame.file).name}:{row.frame.line}" in recording.stderr
