# SPDX-License-Identifier: Apache-2.0
"""collector-config/deploy/otel-gpuflame.service: what it starts, with which rights, and that systemd takes it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from otel_gpuflame.cli.agent import agent

UNIT = Path(__file__).parents[2] / "collector-config" / "deploy" / "otel-gpuflame.service"
CAPABILITIES = {
    "CAP_BPF",
    "CAP_PERFMON",
    "CAP_SYS_PTRACE",
    "CAP_DAC_READ_SEARCH",
    "CAP_CHECKPOINT_RESTORE",
}
WORST_EXPOSURE = 30
"""Tenths of what `systemd-analyze security` gives: 10.0 is a service without any protection."""


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """Every value of each setting, with its section: `Service.ExecStart`."""
    found: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            name, separator, value = line.partition("=")
            assert separator, line
            found[f"{section}.{name}"].append(value)
    return found


def systemd_analyze(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it on the unit; the program that the unit starts need not be installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of Debian's package systemd")
    copy = tmp_path / UNIT.name
    program = UNIT.read_text().split("ExecStart=")[1].split()[0]
    copy.write_text(UNIT.read_text().replace(program, "/bin/true"))
    return subprocess.run(
        ["systemd-analyze", *arguments, str(copy)], capture_output=True, text=True, check=False
    )


def test_the_command_exists_and_takes_its_arguments(unit: dict[str, list[str]]) -> None:
    """`ExecStart` is a command of ours with arguments that it knows."""
    (command,) = unit["Service.ExecStart"]
    program, name, *arguments = shlex.split(command)
    assert (Path(program).name, name) == ("otel-gpuflame", agent.name)
    agent.make_context("agent", arguments)


def test_it_has_the_documented_capabilities_and_no_others(unit: dict[str, list[str]]) -> None:
    """The bounding set is the ambient one, and the user is not root."""
    for setting in ("AmbientCapabilities", "CapabilityBoundingSet"):
        (value,) = unit[f"Service.{setting}"]
        assert set(value.split()) == CAPABILITIES
    assert unit["Service.DynamicUser"] == ["yes"]
    assert unit["Service.NoNewPrivileges"] == ["yes"]
    assert "Service.User" not in unit


@pytest.mark.parametrize(
    "setting", ["ProtectProc", "ProcSubset", "PrivateUsers", "PrivateNetwork", "RootDirectory"]
)
def test_nothing_hides_the_processes_of_the_host(unit: dict[str, list[str]], setting: str) -> None:
    """Settings that would keep other processes or the network out of sight are not used."""
    assert f"Service.{setting}" not in unit


def test_what_a_profiler_calls_is_allowed(unit: dict[str, list[str]]) -> None:
    """The system call filter has the three calls that ordinary services have no use for."""
    allowed = {call for line in unit["Service.SystemCallFilter"] for call in line.split()}
    assert {"bpf", "perf_event_open", "process_vm_readv", "@system-service"} <= allowed


def test_it_may_take_longer_to_stop_than_to_send_what_is_left(
    unit: dict[str, list[str]],
) -> None:
    """SIGKILL comes after the agent's own deadline."""
    (own,) = [option.default for option in agent.params if option.name == "shutdown_s"]
    assert int(unit["Service.TimeoutStopSec"][0]) > int(str(own))


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say."""
    done = systemd_analyze(tmp_path, "verify", "--man=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_little_of_the_host_is_exposed(tmp_path: Path) -> None:
    """`systemd-analyze security` stays below our threshold."""
    done = systemd_analyze(
        tmp_path, "security", "--offline=true", f"--threshold={WORST_EXPOSURE}", "--no-pager"
    )
    assert done.returncode == 0, done.stdout[-200:]
