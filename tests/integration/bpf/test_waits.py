# SPDX-License-Identifier: Apache-2.0
"""The Python line that waits for the GPU holds the wait, as long as it was."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.pipeline import RecordOptions, replay
from otel_gpuflame.pipeline import record as record_live
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.top import top_python_lines
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, record, samples_of, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

MS, REPEAT = 20, 23


@dataclass(frozen=True)
class Waited:
    """A recording of app_wait, and the ns that its waits took inside the driver."""

    recording: Recording
    inside_ns: int


def record_wait(directory: Path, environment: dict[str, str], *flags: str) -> Waited:
    """Record app_wait with a log of the fake driver."""
    log = directory / "driver.log"
    recording = record(
        directory / "test.ogfcap",
        *app_command("app_wait", MS, REPEAT, *flags),
        environment={**environment, "FAKE_CUDA_LOG": str(log)},
    )
    assert recording.exit_code == 0, recording.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    inside_ns = sum(c["ns"] for c in calls if c["api"] == "cuStreamSynchronize")
    return Waited(recording, inside_ns)


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Waited:
    """Waits off the CPU."""
    return record_wait(tmp_path_factory.mktemp("blocked"), environment)


@pytest.fixture(scope="module")
def spinning(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Waited:
    """Waits on the CPU."""
    return record_wait(tmp_path_factory.mktemp("spin"), environment, "--spin")


@pytest.mark.parametrize(("fixture", "mode"), [("blocked", "[blocked]"), ("spinning", "[spin]")])
def test_the_waiting_line_holds_the_whole_wait(
    fixture: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """All of the wait is on the marked line, in the right mode, and within 2 % of the program's own measure.

    It lies between the time inside the driver and the time that the program measured around the call.
    """
    waited: Waited = request.getfixturevalue(fixture)
    recording = waited.recording
    truth = recording.truth
    samples = recording.samples(GPU_WAIT)
    measured_ns = sum(truth["duration_ns"])
    assert len(recording.capture.kind(Kind.WAIT)) == truth["waits"] == REPEAT
    assert recording.capture.pending() == {}
    assert all((truth["function"], truth["line"]) in sample.python() for sample in samples)
    assert {sample.frames[-1].name for sample in samples} == {mode}
    assert {sample.frames[-2].name for sample in samples} == {"cuStreamSynchronize"}
    assert waited.inside_ns <= total(samples) <= measured_ns
    assert total(samples) >= 0.98 * measured_ns


def test_frames_go_from_the_module_to_the_driver_call(blocked: Waited) -> None:
    """The stack starts at the script's module and has the program's functions in calling order."""
    (sample,) = blocked.recording.samples(GPU_WAIT)
    names = [name for name, _ in sample.python()]
    assert names[0] == "<module>"
    order = [names.index(name) for name in ("main", "timed_wait", "wait_for_gpu")]
    assert order == sorted(order)
    files = {f.file for f in sample.frames if f.name == "wait_for_gpu"}
    assert files == {blocked.recording.truth["file"]}


def test_the_summary_names_the_line(blocked: Waited) -> None:
    """The first table of `record` shows where the wait is, with the innermost Python line."""
    (row,) = top_python_lines(blocked.recording.result.bundles, GPU_WAIT)
    assert row.frame.name in blocked.recording.stderr
    assert f"{Path(row.frame.file).name}:{row.frame.line}" in blocked.recording.stderr


def test_windows_add_up_to_the_whole(blocked: Waited) -> None:
    """Cut into windows of 50 ms, the capture has the same waits and launches in total."""
    whole = blocked.recording.result.bundles
    parts = replay(blocked.recording.path, AggregateOptions(window_ns=50_000_000)).bundles
    assert len(parts) > 5
    for sample_type in (GPU_WAIT, GPU_LAUNCH):
        expected = total(samples_of(whole, sample_type))
        assert total(samples_of(parts, sample_type)) == expected > 0


def test_replay_repeats_the_live_profile(
    output: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the recorder showed live and what the file gives are the same profile, to the byte."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = RecordOptions(output=output, command=tuple(app_command("app_wait", MS, 2)))
    live = record_live(options, lambda: False)
    again = replay(output, AggregateOptions(window_ns=None))
    assert live.exit_code == 0
    assert total(samples_of(again.bundles, GPU_LAUNCH)) == 2
    assert encode_pprof(again.bundles) == encode_pprof(live.bundles)
    assert again.ledger.accounts() == live.ledger.accounts()
