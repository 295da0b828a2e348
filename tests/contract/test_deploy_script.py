# SPDX-License-Identifier: Apache-2.0
"""collector-config/verify.sh is a sound shell script. What it does is tested in integration/collector."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "collector-config" / "verify.sh"


def run(*command: str) -> tuple[int, str]:
    """Exit code and output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_it_can_be_started() -> None:
    """The file is executable and names its shell."""
    assert os.access(SCRIPT, os.X_OK)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env bash\n")


def test_bash_reads_it() -> None:
    """There is no syntax error in any branch."""
    assert run("bash", "-n", str(SCRIPT)) == (0, "")


def test_shellcheck_has_nothing_to_say() -> None:
    """No unquoted variable, no test that is always true."""
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck, of Debian's package of that name")
    assert run("shellcheck", str(SCRIPT)) == (0, "")
