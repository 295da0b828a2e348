"""Starting the program to record: held until probes are attached, and otherwise as a shell starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpuflame.capture.command import StoppedCommand
from otel_gpuflame.errors import TargetError


@contextmanager
def started(*command: str) -> Iterator[StoppedCommand]:
    """A stopped command that does not outlive the test."""
    child = StoppedCommand(command)
    try:
        yield child
    finally:
        if not child.released:
            child.abandon()
        elif child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.poll(wait=True)


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs some Python."""
    return (sys.executable, "-c", code, *arguments)


def test_nothing_runs_before_the_release(tmp_path: Path) -> None:
    """The process exists and has not executed the command until it is released."""
    target = tmp_path / "ran"
    with started(*python("import sys; open(sys.argv[1], 'w')", str(target))) as child:
        assert Path(f"/proc/{child.pid}").is_dir()
        assert child.poll() is None
        assert not child.released
        assert os.path.samefile(f"/proc/{child.pid}/exe", sys.executable)
        assert b"ran" not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
        child.release()
        assert child.released
        assert child.poll(wait=True) == 0
    assert target.exists()


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM),
    ],
)
def test_the_exit_code_is_that_of_a_shell(code: str, exit_code: int) -> None:
    """Plain codes as they are, 128 + number for signals; asking again gives the same."""
    with started(*python(code)) as child:
        child.release()
        assert child.poll(wait=True) == exit_code
        assert child.poll() == exit_code


def test_a_command_that_does_not_exist_is_an_error() -> None:
    """The error names the command and why; the exit code is that of a shell."""
    with started("/nonexistent/program") as child:
        with pytest.raises(TargetError, match=r"'/nonexistent/program': No such file"):
            child.release()
        assert child.poll() == 127


def test_a_file_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    """Permission to execute is missing."""
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    with started(str(script)) as child, pytest.raises(TargetError, match="Permission denied"):
        child.release()


def test_an_abandoned_command_never_runs(tmp_path: Path) -> None:
    """When the recording cannot start, the process ends without executing anything."""
    target = tmp_path / "ran"
    child = StoppedCommand(python("import sys; open(sys.argv[1], 'w')", str(target)))
    child.abandon()
    assert child.exit_code == 127
    assert not target.exists()


def test_a_command_that_was_killed_before_the_release_is_an_error() -> None:
    """Somebody ended the waiting process: that is said, and is no crash."""
    with started(*python("pass")) as child:
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetError, match="ended before it was started") as error:
            child.release()
        assert "137" in str(error.value)
        assert child.poll() == 128 + signal.SIGKILL


@pytest.mark.parametrize("is_ignored", [False, True])
def test_signals_are_as_a_shell_leaves_them(tmp_path: Path, is_ignored: bool) -> None:
    """Python ignores SIGPIPE and SIGXFSZ, the recorder handles SIGINT: the program must not notice.

    Where SIGINT was ignored before the recorder, as for a job in the background, it still is.
    """
    result = tmp_path / "ignored"
    command = f"grep ^SigIgn /proc/self/status > {result}"
    handler = signal.SIG_IGN if is_ignored else lambda _number, _frame: None
    before = signal.signal(signal.SIGINT, handler)
    try:
        with started("/bin/sh", "-c", command) as child:
            child.release()
            assert child.poll(wait=True) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = int(result.read_text().split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << (number - 1), number.name
    assert bool(ignored & 1 << (signal.SIGINT - 1)) == is_ignored


def test_no_descriptors_are_left_to_the_program(tmp_path: Path) -> None:
    """The pipes that held it are closed: it has the descriptors of a program started without us."""
    result = tmp_path / "descriptors"
    command = python(
        "import os, sys; os.system(f'ls /proc/{os.getpid()}/fd > {sys.argv[1]}')", str(result)
    )
    subprocess.run(command, check=True, close_fds=False)
    directly = result.read_text()
    with started(*command) as child:
        child.release()
        assert child.poll(wait=True) == 0
    assert result.read_text() == directly


def test_environment_and_directory_are_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs where and as if it had been started directly."""
    monkeypatch.setenv("OGF_TEST_VARIABLE", "as given")
    monkeypatch.chdir(tmp_path)
    with started("/bin/sh", "-c", 'echo "$OGF_TEST_VARIABLE" > here') as child:
        child.release()
        assert child.poll(wait=True) == 0
    assert (tmp_path / "here").read_text() == "as given\n"


def test_polling_does_not_wait() -> None:
    """While the program runs there is no exit code, and asking returns at once."""
    with started(*python("import signal; signal.pause()")) as child:
        child.release()
        assert child.poll() is None
        os.kill(child.pid, signal.SIGTERM)
        assert child.poll(wait=True) == 128 + signal.SIGTERM


def test_a_command_gets_the_environment_that_it_is_given(tmp_path: Path) -> None:
    """That, and nothing of ours."""
    output = tmp_path / "environment"
    code = 'import os; open(os.environ["OUT"], "w").write(repr(sorted(os.environ)))'
    child = StoppedCommand(python(code), {"GIVEN": "a b", "OUT": str(output), "LC_ALL": "C.UTF-8"})
    child.release()
    assert child.poll(wait=True) == 0
    assert output.read_text() == "['GIVEN', 'LC_ALL', 'OUT']"
