"""The library, built from this checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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
