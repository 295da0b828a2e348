# SPDX-License-Identifier: Apache-2.0
"""The Python line that waits for the GPU holds the wait, as long as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.pipeline import RecordOptions, replay
from otel_gpuflame.pipeline import record as record_live
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.digest import Digest
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.top import top_python_lines
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, samples_of, total
from tests.integration.bpf.session import record_in_step

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

MS, REPEAT = 20, 23


def record_wait(directory: Path, environment: dict[str, str], *flags: str) -> Recording:
    """Record app_wait."""
    command = app_command("app_wait", MS, REPEAT, "--hold", *flags)
    recording = record_in_step(directory / "test.ogfcap", *command, environment=environment)
    assert recording.exit_code == 0, recording.stderr
    return recording


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """Waits off the CPU."""
    return record_wait(tmp_path_factory.mktemp("blocked"), environment)


@pytest.fixture(scope="module")
def spinning(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """Waits on the CPU."""
    return record_wait(tmp_path_factory.mktemp("spin"), environment, "--spin")


@pytest.mark.parametrize("fixture", ["blocked", "spinning"])
def test_the_waiting_line_holds_the_whole_wait(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """All of the wait is on the marked line, and between what driver and program have measured.

    The driver measures inside of what is probed, the program around it.
    """
    recording: Recording = request.getfixturevalue(fixture)
    truth = recording.truth
    samples = recording.samples(GPU_WAIT)
    measured_ns = sum(truth["duration_ns"])
    assert len(recording.capture.kind(Kind.WAIT)) == truth["waits"] == REPEAT
    assert recording.capture.pending() == {}
    assert all((truth["function"], truth["line"]) in sample.python() for sample in samples)
    assert {sample.frames[-2].name for sample in samples} == {"cuStreamSynchronize"}
    assert 0 < truth["inside_ns"] <= total(samples) <= measured_ns


def test_a_wait_says_how_the_cpu_waited(blocked: Recording, spinning: Recording) -> None:
    """As many waits are blocked as have left the CPU by the driver's own count: none of a driver that spins.

    A program that is held up between launch and wait finds the work done and need not wait any more.
    """
    for waited in (blocked, spinning):
        rows = waited.capture.kind(Kind.WAIT)
        slept = waited.truth["slept"]
        assert int((rows["voluntary_switches"] > 0).sum()) == slept
        samples = waited.samples(GPU_WAIT)
        modes = {sample.frames[-1].name for sample in samples}
        assert ("[blocked]" in modes, "[spin]" in modes) == (slept > 0, slept < REPEAT)
        assert len(modes) <= 2
    assert blocked.truth["slept"] > 0
    assert spinning.truth["slept"] == 0


def test_frames_go_from_the_module_to_the_driver_call(blocked: Recording) -> None:
    """The stack starts at the script's module and has the program's functions in calling order."""
    sample, *others = blocked.samples(GPU_WAIT)
    assert [other for other in others if other.frames[:-1] != sample.frames[:-1]] == []
    names = [name for name, _ in sample.python()]
    assert names[0] == "<module>"
    order = [names.index(name) for name in ("main", "timed_wait", "wait_for_gpu")]
    assert order == sorted(order)
    files = {f.file for f in sample.frames if f.name == "wait_for_gpu"}
    assert files == {blocked.truth["file"]}


def test_the_summary_names_the_line(blocked: Recording) -> None:
    """The first table of `record` shows where the wait is, with the innermost Python line."""
    (row,) = top_python_lines(blocked.result.bundles, GPU_WAIT)
    assert row.frame.name in blocked.stderr
    assert f"{Path(row.frame.file).name}:{row.frame.line}" in blocked.stderr


def test_windows_add_up_to_the_whole(blocked: Recording) -> None:
    """Cut into windows of 50 ms, the capture has the same waits and launches in total."""
    whole = blocked.result.bundles
    parts = replay(blocked.path, AggregateOptions(window_ns=50_000_000)).bundles
    assert len(parts) > 5
    for sample_type in (GPU_WAIT, GPU_LAUNCH):
        expected = total(samples_of(whole, sample_type))
        assert total(samples_of(parts, sample_type)) == expected > 0


def sums(bundles: Sequence[Bundle]) -> Counter[object]:
    """Values by sample type and frames, in whatever order bundles have them."""
    found: Counter[object] = Counter()
    for bundle in bundles:
        for profile in bundle.profiles:
            for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
                frames = tuple(bundle.frames[frame] for frame in bundle.stacks[stack])
                found[profile.sample_type, frames] += value
    return found


def test_replay_repeats_the_live_tables(
    output: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the recorder keeps of a recording for its tables is what the file gives."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = RecordOptions(output=output, command=tuple(app_command("app_wait", MS, 2)))
    live = record_live(options, lambda: False)
    again = replay(output, AggregateOptions(window_ns=None))
    assert live.exit_code == 0
    assert total(samples_of(again.bundles, GPU_LAUNCH)) == 2
    digest = Digest()
    digest.add(again.bundles)
    assert sums(digest.bundles()) == sums(live.bundles)
    assert again.ledger.accounts() == live.ledger.accounts()
