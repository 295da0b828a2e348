"""Builds the double of NVML's library."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml.c"


def build_nvml(directory: Path) -> Path:
    """Compile libnvidia-ml.so.1 into `directory`, which is then to be in LD_LIBRARY_PATH."""
    path = directory / "libnvidia-ml.so.1"
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    return path
