"""The BPF programs compile for arm64, where this project has no machine to run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.contract.native_build import ROOT, require_tools


def test_programs_compile_for_arm64(tmp_path: Path) -> None:
    """With warnings as errors, as for x86-64."""
    require_tools("make", "clang", "llvm-strip")
    target = tmp_path / "capture.bpf.o"
    command = ["make", "-C", str(ROOT / "bpf"), f"OUT={tmp_path}", "ARCH=arm64", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert target.stat().st_size > 0
