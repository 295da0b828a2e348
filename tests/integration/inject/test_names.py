# SPDX-License-Identifier: Apache-2.0
"""Names are told by their text, not by where CUPTI keeps it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.inject.conftest import NATIVE

pytestmark = pytest.mark.inject

FIRST, SECOND, THIRD, FOURTH = 1, 1 + 16, 1 + 32, 1 + 44


def test_one_address_with_changing_text(library: Path, tmp_path: Path) -> None:
    """Each text has one place, whatever stood at its address before, and its neighbours' prefixes are not it."""
    program = tmp_path / "names_check"
    sources = [
        Path(__file__).with_name("names_check.c"),
        *(NATIVE / "inject" / n for n in ("names.c", "os.c")),
    ]
    flags = [
        "-std=c11",
        "-Wall",
        "-Werror",
        "-fsanitize=address,undefined",
        f"-I{NATIVE / 'inject'}",
    ]
    subprocess.run(["cc", *flags, "-o", program, *sources], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True, errors="replace")
    lines = done.stdout.splitlines()
    assert lines[:6] == [
        f"{FIRST} kernel_one",
        f"{SECOND} kernel_two",
        f"{THIRD} kernel",
        f"{FOURTH} kernel_one_longer",
        f"{FIRST} kernel_one",
        f"{SECOND} kernel_two",
    ]
    rewritten = FOURTH - 1 + 4 + 20 + 1
    assert lines[6:] == [f"{rewritten} kernel_one", "0 ", "0 ", f"{rewritten - 1 + 16}"]
