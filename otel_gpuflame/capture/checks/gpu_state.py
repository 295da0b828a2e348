"""What the NVIDIA driver says of its devices: through NVML, else nvidia-smi, else its files."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any, Final

CAPABILITIES: Final = Path("/proc/driver/nvidia/capabilities")
_TIMEOUT_S: Final = 20
"""nvidia-smi initialises a GPU that nobody uses, which takes seconds."""


def mig_modes() -> list[bool] | None:
    """Of each NVIDIA GPU whether it is partitioned now (MIG); None where there is no driver to ask."""
    for source in (_from_nvml, _from_nvidia_smi, _from_files):
        modes = source()
        if modes is not None:
            return modes
    return None


def _from_nvml() -> list[bool] | None:
    """By the package nvidia-ml-py, if it is installed."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        # Its errors are its own classes, which are not there where it is not installed.
        return None
    try:
        return [_mode(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _mode(nvml: Any, index: int) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        # Consumer GPUs do not know the question.
        return False
    return bool(current)


def _from_nvidia_smi() -> list[bool] | None:
    command = ["nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() == "Enabled" for line in done.stdout.splitlines() if line.strip()]


def _from_files() -> list[bool] | None:
    """A GPU that is partitioned has files for its instances."""
    if not CAPABILITIES.is_dir():
        return None
    return [any(gpu.glob("mig/gi*")) for gpu in sorted(CAPABILITIES.glob("gpu*"))]
