"""The libraries, built from this checkout, and programs that have them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.inject.opencl import LAYER, Program
from tests.tiers import require

NATIVE = Path(__file__).parents[3] / "otel_gpuflame" / "native"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libogf_inject.so."""
    missing = [tool for tool in ("cc", "gcc", "make") if shutil.which(tool) is None]
    require("inject", not missing, f"missing: {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("inject")
    path = directory / "libogf_inject.so"
    command = ["make", "-C", str(NATIVE), f"OUT={directory}", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path


@pytest.fixture(scope="session")
def opencl_tier() -> None:
    """Skip, or fail where forced, unless the layer and an OpenCL platform are there."""
    vendors = list(Path("/etc/OpenCL/vendors").glob("*.icd"))
    require("inject", LAYER.exists(), f"{LAYER} is missing: make native")
    require("inject", bool(vendors), "no OpenCL platform: apt-get install pocl-opencl-icd")


@pytest.fixture
def start() -> Iterator[Callable[[Sequence[str]], Program]]:
    """Starts programs under the OpenCL layer, and ends them with the test."""
    started: list[Program] = []

    def start_one(command: Sequence[str]) -> Program:
        started.append(Program(command))
        return started[-1]

    yield start_one
    for each in started:
        each.process.kill()
        each.process.wait()
