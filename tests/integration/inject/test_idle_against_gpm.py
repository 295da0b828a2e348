# SPDX-License-Identifier: Apache-2.0
"""What is run on a real device to compare idle times with its counters, on doubles of driver, CUPTI and NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.build import build_nvml
from tests.integration.inject.session import environment

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]
ROOT = Path(__file__).parents[3]
LIMIT_S = 1_000
"""25 times as long as it takes alone on a machine."""
TRIES = 3
"""Where some idle time is unknown: a recorder that was kept from reading for 2 s says so, and is right."""


def run(variables: dict[str, str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and lines by check, of a run with 9 s a part."""
    command = [sys.executable, "-m", "tests.integration.gpu.idle_against_gpm"]
    done = subprocess.run(
        [*command, "--fake", "--seconds", "9"],
        env=variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line.pop("check"): line for line in lines}


@pytest.fixture
def variables(library: Path, tmp_path: Path) -> dict[str, str]:
    """Of a host on which NVML sees what programs on the fake driver do."""
    variables = environment(library)
    (tmp_path / "processes").touch()
    directories = f"{build_nvml(tmp_path).parent}:{variables.get('LD_LIBRARY_PATH', '')}"
    return {
        **variables,
        "LD_LIBRARY_PATH": directories,
        "FAKE_NVML_BUSY": str(tmp_path / "busy"),
        "FAKE_NVML_PROCESSES": f"@{tmp_path / 'processes'}",
    }


def test_idle_times_agree_with_counters(variables: dict[str, str]) -> None:
    """And beside a process that is not captured they are unknown."""
    for _ in range(TRIES):
        status, lines = run(variables)
        if lines.get("idle", {}).get("unknown", 0.0) == 0.0:
            break
    assert {check: line["ok"] for check, line in lines.items()} == dict.fromkeys(
        ("recorded", "busy", "idle", "stranger_seen", "unknown"), True
    ), json.dumps(lines)
    assert status == 0


def test_counters_that_say_otherwise_are_noticed(variables: dict[str, str]) -> None:
    """A device that says that it is always at 1 %, and of no other process."""
    del variables["FAKE_NVML_BUSY"], variables["FAKE_NVML_PROCESSES"]
    variables["FAKE_NVML_PROCESSES"] = "@/dev/null"
    status, lines = run(variables)
    assert {check: line["ok"] for check, line in lines.items()} == {
        "recorded": True,
        "busy": False,
        "idle": False,
        "stranger_seen": False,
        "unknown": False,
    }, lines
    assert status == 1
