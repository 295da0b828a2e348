"""What a target is called."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from otel_gpuflame.capture.describe import describe, workload_name

PYTHON = "/usr/bin/python3.12"


def process(
    proc: Path,
    *,
    command: bytes = b"python\0train.py\0",
    environment: bytes | None = b"",
    executable: str = PYTHON,
) -> Path:
    """A process 42 in a made-up /proc."""
    directory = proc / "42"
    directory.mkdir()
    (directory / "cmdline").write_bytes(command)
    if environment is not None:
        (directory / "environ").write_bytes(environment)
    os.symlink(executable, directory / "exe")
    return proc


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train.py"], "train.py"),
        (["/srv/app/train.py", "-m", "x"], "train.py"),
        (["-u", "train.py"], "train.py"),
        (["-m", "torch.distributed.run", "train.py"], "train.py"),
        (["-mpkg.tool"], "pkg.tool"),
        (["-um", "pkg.tool"], "pkg.tool"),
        (["-ImPKG"], "PKG"),
        (["-m"], "python -m"),
        (["-c", "import torch; /srv/secret"], "python -c"),
        (["-cpass"], "python -c"),
        (["-uc", "import torch"], "python -c"),
        (["-Ic", "a/b/secret"], "python -c"),
        (["-X", "importtime", "train.py"], "train.py"),
        (["-Ximporttime", "train.py"], "train.py"),
        (["-W", "ignore", "train.py"], "train.py"),
        (["-uWignore", "train.py"], "train.py"),
        (["-uW", "ignore", "train.py"], "train.py"),
        (["--check-hash-based-pycs", "always", "train.py"], "train.py"),
        (["-"], "python script"),
        (["/srv/app/"], "app"),
        (["."], "python script"),
        ([], "python interactive"),
        (["-i"], "python interactive"),
        (["--version"], "python interactive"),
    ],
)
def test_a_python_program_is_called_by_script_or_module(arguments: list[str], name: str) -> None:
    """What runs in an interpreter has the name, never the interpreter, and never code of -c."""
    assert workload_name(["python", *arguments], PYTHON) == name


@pytest.mark.parametrize("executable", ["/usr/bin/python3.11", "/opt/python", "/usr/bin/pypy3"])
def test_interpreters_are_known_by_their_executable(executable: str) -> None:
    """It is the file that runs, not what it was called by, that makes an interpreter."""
    assert workload_name(["anything", "a.py"], executable) == "a.py"


def test_other_programs_are_called_by_their_executable() -> None:
    """Arguments of other programs say nothing about what they are."""
    assert workload_name(["x", "-m", "y"], "/usr/bin/clinfo") == "clinfo"


@pytest.mark.parametrize("executable", [PYTHON, "/bin/" + "x" * 3_000])
def test_names_are_bounded(executable: str) -> None:
    """A name that a process chose cannot be longer than 1 KiB."""
    assert len(workload_name(["p", "y" * 3_000], executable)) == 1024


def test_description_of_a_process(tmp_path: Path) -> None:
    """Host, pid, executable and workload, sorted by key."""
    attributes = describe(42, process(tmp_path))
    assert attributes == (
        ("host.name", socket.gethostname()),
        ("process.executable.name", "python3.12"),
        ("process.pid", 42),
        ("service.name", "train.py"),
        ("telemetry.distro.name", "otel_gpuflame"),
    )


def test_the_environment_of_the_process_names_it(tmp_path: Path) -> None:
    """OTEL_SERVICE_NAME goes before OTEL_RESOURCE_ATTRIBUTES, and that before the command line."""
    resource = b"OTEL_RESOURCE_ATTRIBUTES=service.name=a, deployment.environment.name=pr%20od,team=x,bad,k8s.pod.name="
    proc = process(tmp_path, environment=resource + b"\0OTEL_SERVICE_NAME=b\0EMPTY\0")
    found = dict(describe(42, proc) or ())
    assert found["service.name"] == "b"
    assert found["deployment.environment.name"] == "pr od"
    assert {"team", "bad", "k8s.pod.name"}.isdisjoint(found)


def test_resource_attributes_alone_name_it_too(tmp_path: Path) -> None:
    """Without OTEL_SERVICE_NAME the resource attribute counts; values may hold `=`."""
    proc = process(tmp_path, environment=b"OTEL_RESOURCE_ATTRIBUTES=service.name=a=b\0")
    assert dict(describe(42, proc) or ())["service.name"] == "a=b"


def test_values_of_the_environment_are_bounded(tmp_path: Path) -> None:
    """A target cannot make the profiler carry more than 1 KiB a value."""
    text = b"x" * 5_000
    environment = (
        b"OTEL_SERVICE_NAME=" + text + b"\0OTEL_RESOURCE_ATTRIBUTES=service.version=" + text
    )
    found = dict(describe(42, process(tmp_path, environment=environment)) or ())
    assert len(str(found["service.name"])) == len(str(found["service.version"])) == 1024


def test_an_unreadable_environment_is_no_obstacle(tmp_path: Path) -> None:
    """The command line still names the process."""
    assert (
        dict(describe(42, process(tmp_path, environment=None)) or ())["service.name"] == "train.py"
    )


def test_a_replaced_executable_keeps_its_name(tmp_path: Path) -> None:
    """After an upgrade the kernel marks the file as deleted; that is no part of its name."""
    proc = process(tmp_path, executable="/usr/bin/clinfo (deleted)", command=b"clinfo\0")
    assert dict(describe(42, proc) or ())["process.executable.name"] == "clinfo"


@pytest.mark.parametrize("command", [b"", b"\0", b"\0\0\0", b"\xff\xfe\0\x80.py\0"])
def test_odd_command_lines_are_described(tmp_path: Path, command: bytes) -> None:
    """A process may overwrite its command line with anything."""
    assert describe(42, process(tmp_path, command=command)) is not None


def test_a_process_that_is_gone_has_no_description(tmp_path: Path) -> None:
    """None, and no exception."""
    assert describe(42, tmp_path) is None


def test_this_process_can_be_described() -> None:
    """The real /proc has what is needed."""
    found = dict(describe(os.getpid()) or ())
    assert found["process.pid"] == os.getpid()
    assert found["service.name"] not in ("", "python")
