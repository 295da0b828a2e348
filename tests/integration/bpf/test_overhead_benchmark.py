"""The benchmark of what the agent costs, which otherwise runs on a GPU only, on the fake driver: that it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.bpf.recording import LIMIT_S, ROOT

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]
_PARTS = ("rare", "window", "record")


def test_each_part_has_units(tmp_path: Path) -> None:
    """A second of each; what it says of a fake is nothing."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.benchmarks.gpu_agent_overhead", "compiled"]
    parts = [argument for part in _PARTS for argument in (f"--{part}", "1")]
    done = subprocess.run(
        [*command, "--warmup", "0.5", "--direct", "0", *parts, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(report.read_text())["parts"]
    assert all(measured[part]["units"] > 0 for part in _PARTS)
