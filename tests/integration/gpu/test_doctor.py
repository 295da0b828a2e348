"""`doctor` beside a real driver: what it says is what the driver's own tools say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = Path("/proc/driver/nvidia/version")
PARAMETERS = Path("/proc/driver/nvidia/params")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, str]]:
    """The checks by name."""
    if not VERSION.is_file():
        pytest.skip("gpu: no NVIDIA driver is loaded")
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "doctor", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_the_driver_is_named(checks: dict[str, dict[str, str]]) -> None:
    """With its version, and its library can be probed."""
    assert checks["NVIDIA driver"]["status"] == "ok"
    assert checks["NVIDIA driver"]["detail"] == VERSION.read_text().splitlines()[0]
    assert "libcuda.so.1" in checks["GPU libraries"]["detail"]


def test_profiling_rights_are_those_of_the_driver(checks: dict[str, dict[str, str]]) -> None:
    """RmProfilingAdminOnly as in the driver's file."""
    restricted = "RmProfilingAdminOnly: 1" in PARAMETERS.read_text()
    assert checks["GPU profiling rights"]["status"] == ("warn" if restricted else "ok")


def test_mig_is_what_nvidia_smi_says(checks: dict[str, dict[str, str]]) -> None:
    """Partitioned or not."""
    command = ["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"]
    modes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert checks["MIG"]["status"] == ("warn" if "Enabled" in modes else "ok")
    assert f"{len(modes)} GPUs" in checks["MIG"]["detail"]
