# SPDX-License-Identifier: Apache-2.0
"""Recording what already runs, for a limited time, and stopping: the target never notices."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import fake_environment
from tests.integration.bpf.apps import late as late_program
from tests.integration.bpf.recording import (
    LIMIT_S,
    Recording,
    app,
    record,
    record_command,
    total,
)
from tests.integration.bpf.session import (
    attach_and_record,
    attached,
    finished,
    running,
    wait_until_inside,
)

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

DURATION_S = 0.5


def assert_late_work_recorded(recording: Recording) -> None:
    """What `late` does after --hold is in the capture, with the line that waits."""
    truth = recording.truth
    capture = recording.capture
    assert len(capture.kind(Kind.LAUNCH)) == capture.count("launch", "seen") == truth["launches"]
    assert set(capture.calls["tgid"].tolist()) == {truth["pid"]}
    (wait,) = recording.samples(GPU_WAIT)
    assert (truth["function"], truth["line"]) in wait.python()


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """A program that had done GPU work before the recorder came."""
    output = tmp_path_factory.mktemp("late") / "test.ogfcap"
    return attach_and_record(output, app("late", "--hold"), environment)


def test_a_running_process_is_recorded_from_when_the_recorder_comes(late: Recording) -> None:
    """Attaching late sees all later calls, with Python frames and resource; what came before is not there."""
    assert_late_work_recorded(late)
    assert late.capture.pending() == {}
    assert late.capture.targets[late.truth["pid"]]["service.name"] == "late.py"
    with ReplaySource(late.path) as source:
        target = source.created["target"]
    assert "late.py --hold" in target
    assert target.endswith(f"(pid {late.truth['pid']})")


def test_kernels_named_before_the_recorder_came_have_a_mark(late: Recording) -> None:
    """A handle that was looked up before is a kernel of unknown name, not a wrong one."""
    samples = late.samples(GPU_LAUNCH)
    assert {s.frames[-1].name for s in samples} == {"[kernel of unknown name]"}
    assert total(samples) == late.truth["launches"]


def test_children_of_a_running_process_are_recorded(
    output: Path, environment: dict[str, str]
) -> None:
    """--pid of a shell records the program that the shell has already started."""
    text = f"{shlex.join(app('late', '--hold'))}; true"
    recording = attach_and_record(output, ["sh", "-c", text], environment)
    assert_late_work_recorded(recording)


def test_a_process_may_have_any_name(output: Path, environment: dict[str, str]) -> None:
    """In any encoding: it is recorded from when it is named until it ends."""
    named = "import ctypes, runpy; ctypes.CDLL(None).prctl(15, b'data-\\xc3')"
    run = f"runpy.run_path({late_program.__file__!r}, run_name='__main__')"
    command = [sys.executable, "-u", "-c", f"{named}; {run}", "--hold"]
    recording = attach_and_record(output, command, environment)
    assert_late_work_recorded(recording)


def test_a_pid_that_does_not_exist_is_an_error(output: Path) -> None:
    """The message names the pid."""
    recording = record(output, options=["--pid", 2**22])
    assert recording.exit_code == 1
    assert f"no process {2**22}" in recording.stderr


def test_a_thread_is_not_a_process(output: Path) -> None:
    """The number of a thread is refused with that of its process, not recorded in vain."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    recording = record(output, options=["--pid", thread.native_id])
    done.set()
    assert recording.exit_code == 1
    assert f"{thread.native_id} is a thread of process {os.getpid()}" in recording.stderr


def test_a_library_that_was_replaced_on_disk_is_still_probed(
    tmp_path: Path, fakes: Path, output: Path
) -> None:
    """After a driver update running programs have the old file, which no path leads to any more."""
    copy = tmp_path / "driver"
    shutil.copytree(fakes, copy)
    with running(app("late", "--hold"), fake_environment(copy)) as target:
        target.truth()
        # As package managers do it: the new file takes the place of the old one.
        shutil.copy(copy / "libcuda.so.1", copy / "new")
        (copy / "new").replace(copy / "libcuda.so.1")
        with attached(output, target.process.pid) as recorder:
            target.go()
            assert target.finish() == 0
            recording = finished(recorder, output)
    assert len(recording.capture.kind(Kind.LAUNCH)) == 23


def test_the_duration_ends_the_recording_and_not_the_command(
    output: Path, environment: dict[str, str]
) -> None:
    """After --duration, and not before, the recorder is gone; the command, which held until then, ends as it would."""
    command = record_command(output, *app("late", "--hold"), options=["--duration", DURATION_S])
    with running(command, environment) as recorder:
        code = recorder.process.wait(LIMIT_S)
        recorder.go()
        stdout = recorder.stdout.join()
    recording = Recording(output, code, stdout, recorder.stderr.text())
    assert code == 0, recording.stderr
    assert recording.truth["launches"] == 23
    # The command may have done its first work while it was recorded, and did all the rest after that.
    assert len(recording.capture.kind(Kind.LAUNCH)) <= late_program.BEFORE
    assert recording.capture.count("launch", "seen") <= late_program.BEFORE
    assert recording.length_ns() >= DURATION_S * 1e9


def test_a_wait_that_outlasts_the_recording_is_pending(
    output: Path, environment: dict[str, str]
) -> None:
    """A call that is still inside the driver is counted as such, and returns unharmed afterwards."""
    with running(app("gated_wait", "--hold"), environment) as target:
        target.truth()
        with attached(output, target.process.pid) as recorder:
            target.go()
            wait_until_inside(target)
            recorder.process.send_signal(signal.SIGTERM)
            recording = finished(recorder, output)
        target.go()
        assert target.finish() == 0, target.stderr.text()
    assert recording.exit_code == 0, recording.stderr
    assert recording.capture.pending() == {"wait": 1}
    assert recording.account("wait").pending == 1
    assert recording.samples(GPU_WAIT) == []
    assert json.loads(target.stdout.text().splitlines()[-1])["waits"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_recording_of_a_process(
    number: signal.Signals, output: Path, environment: dict[str, str]
) -> None:
    """Ctrl-C and SIGTERM finish the file; the process goes on and ends by itself."""
    with running(app("late", "--hold"), environment) as target:
        target.truth()
        with attached(output, target.process.pid) as recorder:
            recorder.process.send_signal(number)
            recording = finished(recorder, output)
        assert recording.exit_code == 0, recording.stderr
        recording.capture.assert_nothing_called()
        target.go()
        assert target.finish() == 0
        assert '"launches": 23' in target.stdout.text()
