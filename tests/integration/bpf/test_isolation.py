# SPDX-License-Identifier: Apache-2.0
"""Recorders do not see each other's targets, and targets do not notice recorders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.events import wire
from otel_gpuflame.events.wire import Kind
from tests.integration.bpf.recording import ROOT, Capture, app, record, record_command
from tests.integration.bpf.session import attached, finished, running, wait_until_inside

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

IGNORED_SIGNALS = "SigIgn:"


def test_recorders_of_the_same_library_see_their_own_targets(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Two recorders probe one file at the same time; each has the calls of its process and no others."""
    paths = [tmp_path / "first.ogfcap", tmp_path / "second.ogfcap"]
    command = app("late", "--hold")
    with running(command, environment) as first, running(command, environment) as second:
        targets = (first, second)
        for target in targets:
            target.truth()
        with (
            attached(paths[0], first.process.pid) as one,
            attached(paths[1], second.process.pid) as two,
        ):
            for target in targets:
                target.go()
            for target in targets:
                assert target.finish() == 0
            recordings = [finished(r, p) for r, p in zip((one, two), paths, strict=True)]
    for target, recording in zip(targets, recordings, strict=True):
        assert set(recording.capture.calls["tgid"].tolist()) == {target.process.pid}
        assert recording.capture.count("launch", "seen") == 23
        assert recording.capture.pending() == {}


def test_a_recorder_that_is_killed_leaves_target_and_file(
    output: Path, environment: dict[str, str]
) -> None:
    """SIGKILL of the recorder while its target waits: the wait ends as it would, the file can be read."""
    with running(app("gated_wait", "--hold"), environment) as target:
        target.truth()
        with attached(output, target.process.pid) as recorder:
            target.go()
            wait_until_inside(target)
            recorder.process.kill()
            recorder.process.wait()
        target.go()
        assert target.finish() == 0, target.stderr.text()
    assert json.loads(target.stdout.text().splitlines()[-1])["waits"] == 1
    with ReplaySource(output, call_dtype=wire.CALL) as source:
        capture = Capture(list(source.events()))
    assert len(capture.kind(Kind.WAIT)) == 0


def test_a_pid_does_not_outlive_its_process(bpf_tier: None) -> None:
    """Looking at a process that has just ended does not make BPF capture whoever gets its pid next."""
    kernel = CaptureKernel()
    targets = Targets(kernel, Attachments(kernel.uprobes, in_windows=False))
    with subprocess.Popen(["sleep", "60"]) as child:
        key = child.pid.to_bytes(4, "little")
        now_ns = time.monotonic_ns()
        targets.add(child.pid, now_ns)
        assert kernel.targets.get(key) is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert kernel.targets.get(key) is None
        # It is still in /proc, as a zombie.
        targets.look(now_ns + 10**12)
        assert kernel.targets.get(key) is None
    kernel.close()


@pytest.mark.parametrize("before", ["", "trap '' INT;"], ids=["as we are", "in the background"])
def test_the_command_gets_the_signals_that_it_would_get(before: str, output: Path) -> None:
    """The recorder's own handling of signals is not inherited; what was ignored before it, as by nohup, still is."""
    command = ["grep", IGNORED_SIGNALS, "/proc/self/status"]
    shell = ["sh", "-c", f'{before} exec "$@"', "sh"]
    plain, recorded = (
        subprocess.run([*shell, *started], cwd=ROOT, capture_output=True, text=True, check=True)
        for started in (command, record_command(output, *command))
    )
    assert recorded.stdout == plain.stdout


def test_interrupting_both_ends_the_command_first(
    output: Path, environment: dict[str, str]
) -> None:
    """Ctrl-C goes to the whole group: the command ends by it, and its recording is complete."""
    with running(record_command(output, *app("late", "--hold")), environment) as recorder:
        recorder.truth()
        os.killpg(recorder.process.pid, signal.SIGINT)
        code = recorder.finish()
    assert code == 128 + signal.SIGINT
    with ReplaySource(output, call_dtype=wire.CALL) as source:
        capture = Capture(list(source.events()))
        assert source.damage is None
    assert len(capture.kind(Kind.LAUNCH)) == 5
    assert capture.pending() == {}


def test_descriptors_of_the_recorder_stay_with_it(output: Path) -> None:
    """The command starts with its three standard streams and nothing else."""
    code = "import os; print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))"
    # One more is open while the directory is read.
    assert record(output, sys.executable, "-c", code).stdout == "['0', '1', '2'] 4\n"
