"""Kernels that Triton compiles, under the lines that launch them: its own compiler and launcher on the fake driver.

`OGF_TRITON_PYTHON` names an interpreter with Triton and without PyTorch, which Triton would ask for a device.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.integration.bpf.recording import app
from tests.integration.bpf.session import record_in_step

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]
PYTHON = os.environ.get("OGF_TRITON_PYTHON")
DRIVER = Path(__file__).parent / "apps" / "triton_driver.c"


@pytest.mark.skipif(PYTHON is None, reason="OGF_TRITON_PYTHON names no interpreter with Triton")
def test_launches_of_triton_are_under_their_line(
    output: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """All of them, each with the kernel's name, below the frames of Triton itself."""
    assert PYTHON is not None
    library = tmp_path / "libtriton_driver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, DRIVER], check=True)
    (driver,) = (
        path
        for path in environment["LD_LIBRARY_PATH"].split(":")
        if (Path(path) / "libcuda.so.1").exists()
    )
    settings = {
        **environment,
        "LD_PRELOAD": str(library),
        "TRITON_LIBCUDA_PATH": driver,
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    recording = record_in_step(output, *app("triton_step", python=PYTHON), environment=settings)
    truth = recording.truth
    assert len(recording.capture.kind(Kind.LAUNCH)) == truth["launches"]
    samples = recording.samples(GPU_LAUNCH)
    assert sum(sample.value for sample in samples) == truth["launches"]
    for sample in samples:
        assert ("step", truth["line"]) in sample.python()
        assert sample.frames[-1].name == truth["kernel"]
