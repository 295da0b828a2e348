# SPDX-License-Identifier: Apache-2.0
"""A host or a user that cannot capture gets one line with the remedy, and exit code 3."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contract.test_deploy_systemd import CAPABILITIES
from tests.integration.bpf.recording import ROOT, record_command
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

UNAVAILABLE = 3
# Reading the interpreter and the package must not be what fails.
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"),
    "--bounding-set=-all,+dac_read_search",
)
AS_ROOT_WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a recorder that cannot work."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def assert_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Exit code 3 and a single line that is no traceback; the line."""
    assert done.returncode == UNAVAILABLE, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert done.stdout == ""
    return line


@pytest.mark.parametrize("prefix", [AS_NOBODY, AS_ROOT_WITHOUT_RIGHTS], ids=["nobody", "root"])
def test_a_user_without_rights_is_told_which_are_missing(
    prefix: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither an ordinary user nor root in a container without capabilities can load BPF programs."""
    require("bpf", shutil.which("setpriv") is not None, "setpriv (util-linux) is missing")
    tmp_path.chmod(0o777)
    done = run([*prefix, *record_command(tmp_path / "test.ogfcap", "echo", "it ran")])
    line = assert_one_line(done)
    assert "not permitted" in line
    assert set(re.findall(r"CAP_[A-Z_]+", line)) >= CAPABILITIES


def test_a_libbpf_that_is_not_there_is_named(output: Path) -> None:
    """The message has the path that was tried, the package to install, and the variable."""
    command = record_command(output, "echo", "it ran")
    line = assert_one_line(run(command, OTEL_GPUFLAME_LIBBPF="/nonexistent/libbpf.so.1"))
    for part in ("/nonexistent/libbpf.so.1", "apt-get install libbpf1", "OTEL_GPUFLAME_LIBBPF"):
        assert part in line


@pytest.mark.parametrize("missing", ["capture.bpf.o", "libogf_drain.so"])
def test_parts_that_were_not_built_are_named(missing: str, output: Path, tmp_path: Path) -> None:
    """A package without its compiled parts says how to build them."""
    package = tmp_path / "otel_gpuflame"
    shutil.copytree(ROOT / "otel_gpuflame", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_artifacts" / missing).unlink()
    command = record_command(output, "echo", "it ran")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    line = assert_one_line(done)
    assert missing in line
    assert "make bpf" in line


def test_an_output_that_cannot_be_written_costs_the_command_nothing(tmp_path: Path) -> None:
    """The path is tried before the command runs: it does not run at all."""
    done = run(record_command(tmp_path / "no-such-directory" / "x.ogfcap", "echo", "it ran"))
    assert done.returncode == 1
    assert "no-such-directory" in done.stderr
    assert done.stdout == ""


def test_neither_a_command_nor_a_pid_is_wrong_usage() -> None:
    """Exit code 2, and the usage."""
    done = run([sys.executable, "-m", "otel_gpuflame", "record"])
    assert done.returncode == 2
    assert "give either a command after `--`, or --pid" in done.stderr
