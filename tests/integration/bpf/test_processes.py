# SPDX-License-Identifier: Apache-2.0
"""Children, grandchildren and programs that replace themselves are recorded; ends of all kinds are in the books."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.ledger import Account
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import FAKES, app_command
from tests.integration.bpf.recording import Recording, app, record
from tests.integration.bpf.session import record_in_step

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


WAIT_MS = 10


def launches_by_pid(recording: Recording) -> dict[int, int]:
    """Rows of launches by process."""
    pids = recording.capture.kind(Kind.LAUNCH)["tgid"].tolist()
    return {pid: pids.count(pid) for pid in set(pids)}


def test_forked_and_started_children_are_recorded(
    output: Path, environment: dict[str, str]
) -> None:
    """Parent, forked child and started child each have their own launches, in profiles of their own."""
    command = app_command("app_fork", 23, 7, 11)
    recording = record_in_step(output, *command, environment=environment)
    made = {p["pid"]: p["launches"] for p in recording.truth["processes"]}
    assert launches_by_pid(recording) == made
    assert recording.capture.pending() == {}
    profiled: dict[int, int] = {}
    for sample in recording.samples(GPU_LAUNCH):
        profiled[sample.pid] = profiled.get(sample.pid, 0) + sample.value
    assert profiled == made
    # The started child may have ended before it could be described.
    parent, forked, _ = made
    for pid in (parent, forked):
        assert recording.capture.targets[pid]["service.name"] == "app_fork.py"
        assert recording.capture.targets[pid]["process.pid"] == pid


@pytest.mark.parametrize(
    "script",
    ["exec {app}", "sh -c '{app}; true'; true"],
    ids=["exec", "grandchild"],
)
def test_programs_started_by_shells_are_recorded(
    script: str, output: Path, environment: dict[str, str]
) -> None:
    """However a shell starts the program, it is recorded from its first call, with Python frames."""
    text = script.format(app=shlex.join(app_command("app_wait", WAIT_MS, 2, "--hold")))
    recording = record_in_step(output, "sh", "-c", text, environment=environment)
    assert recording.exit_code == 0, recording.stderr
    truth = recording.truth
    assert launches_by_pid(recording) == {truth["pid"]: 2}
    assert recording.capture.pending() == {}
    for sample in recording.samples(GPU_WAIT):
        assert (truth["function"], truth["line"]) in sample.python()


def test_a_program_that_replaces_itself_keeps_its_stacks_apart(
    output: Path, environment: dict[str, str]
) -> None:
    """After exec, the same process is another program: its own frames, nothing of the old ones."""
    command = app("exec_chain", 5, WAIT_MS, str(FAKES / "app_wait.py"), WAIT_MS, 2, "--hold")
    recording = record_in_step(output, *command, environment=environment)
    first, second = recording.truths
    assert first["pid"] == second["pid"]
    assert launches_by_pid(recording) == {first["pid"]: 7}
    values = {"launch_before_exec": 0, "timed_wait": 0}
    for sample in recording.samples(GPU_LAUNCH):
        (function,) = {name for name, _ in sample.python()} & set(values)
        values[function] += sample.value
    assert values == {"launch_before_exec": 5, "timed_wait": 2}


def test_a_process_killed_inside_a_wait_is_in_the_books(
    output: Path, environment: dict[str, str]
) -> None:
    """The waits that SIGKILL ended are counted as process gone, and the recording goes on."""
    recording = record(output, *app("killed_wait"), environment=environment)
    truth = recording.truth
    assert truth["signal"] == 9
    assert recording.exit_code == 0
    assert launches_by_pid(recording) == {truth["child"]: 1, truth["pid"]: 1}
    capture = recording.capture
    waits = truth["threads"]
    assert capture.count("wait", "seen") == capture.count("wait", "process_gone") == waits
    assert capture.pending() == {}
    assert recording.account("wait") == Account("wait", waits, 0, (("process_gone", waits),), 0)
    assert recording.samples(GPU_WAIT) == []
    assert f"process gone {waits}" in recording.stderr


def test_a_command_that_does_nothing_is_recorded(output: Path) -> None:
    """`true` gives an empty capture and a sentence that says so."""
    recording = record(output, "true")
    assert recording.exit_code == 0
    recording.capture.assert_nothing_called()
    assert "No GPU call was seen" in recording.stderr


def test_a_command_that_does_not_exist_is_an_error(output: Path) -> None:
    """The message names the command and the reason."""
    recording = record(output, "no-such-command-here")
    assert recording.exit_code == 1
    assert "cannot execute 'no-such-command-here': No such file or directory" in recording.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_of_the_command_is_passed_on(script: str, code: int, output: Path) -> None:
    """`record` ends as its command did, signals as a shell reports them; the file is whole."""
    recording = record(output, "sh", "-c", script)
    assert recording.exit_code == code
    recording.capture.assert_nothing_called()


def test_standard_streams_are_those_of_the_recorder(output: Path) -> None:
    """Output of the command comes out unchanged; tables go to standard error."""
    recording = record(
        output, sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err')"
    )
    assert recording.stdout == "out\n"
    assert "err" in recording.stderr
