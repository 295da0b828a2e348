"""The objects of bpf/, freshly built from the sources of this checkout, for the tests that check it against Python."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.tiers import require

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "bpf" / "include"


def require_tools(*tools: str) -> None:
    """Skip, or fail where the tier is forced, unless all of these are installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    require("bpf", not missing, f"missing: {', '.join(missing)}")


def build_object(directory: Path, name: str = "capture.bpf.o") -> Path:
    """Build the target `name` of bpf/Makefile into `directory`."""
    path = directory / name
    command = ["make", "-C", str(ROOT / "bpf"), f"OUT={directory}", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return path


def btf_types(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Types of an object by kind and name."""
    command = ["bpftool", "-j", "btf", "dump", "file", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {(t["kind"], t["name"]): t for t in json.loads(result.stdout)["types"]}
