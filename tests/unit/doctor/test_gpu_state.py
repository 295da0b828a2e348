"""Where the state of NVIDIA devices is asked for, and what counts as an answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_gpuflame.capture.checks import gpu_state


class NvmlError(Exception):
    """As pynvml's."""


def nvml(*modes: Any, refuses: bool = False) -> SimpleNamespace:
    """A module pynvml whose devices answer with `modes`; an exception is raised."""
    calls: list[str] = []

    def start() -> None:
        if refuses:
            raise NvmlError

    def mode(index: int) -> Any:
        if isinstance(modes[index], Exception):
            raise modes[index]
        return modes[index]

    return SimpleNamespace(
        calls=calls,
        NVMLError=NvmlError,
        nvmlInit=start,
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetCount=lambda: len(modes),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMigMode=mode,
    )


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without any of the sources; the folder that programs are looked for in."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_state, "CAPABILITIES", tmp_path / "capabilities")
    return tmp_path


def program(folder: Path, script: str) -> None:
    """Install nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_driver_there_is_no_answer(tools: Path) -> None:
    """None, which is not the same as no GPU."""
    assert gpu_state.mig_modes() is None


def test_nvml_is_asked_first(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of now counts, not the one after a reset; GPUs that do not know it are not partitioned."""
    module = nvml((1, 1), (0, 1), NvmlError())
    monkeypatch.setitem(sys.modules, "pynvml", module)
    program(tools, "echo Enabled")
    assert gpu_state.mig_modes() == [True, False, False]
    assert module.calls == ["shutdown"]


def test_nvidia_smi_is_asked_where_nvml_is_not_usable(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line a GPU; consumer GPUs say [N/A]."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(refuses=True))
    program(tools, "printf 'Enabled\\nDisabled\\n[N/A]\\n'")
    assert gpu_state.mig_modes() == [True, False, False]


def test_the_drivers_files_are_looked_at_last(tools: Path) -> None:
    """Instances of a partitioned GPU have files; the folder `mig` itself is always there."""
    program(tools, "exit 9")
    for folder in ("mig", "gpu0/mig/gi1", "gpu1/mig"):
        os.makedirs(tools / "capabilities" / folder)
    assert gpu_state.mig_modes() == [True, False]
