# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the live tests: the doubles, built once, and the environment that finds them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.build import build_fakes, fake_environment
from tests.integration.bpf.host_lock import agents_side_by_side
from tests.tiers import require


@pytest.fixture(scope="session")
def opencl(bpf_tier: None) -> None:
    """PoCL and its Python binding."""
    has_driver = any(Path("/etc/OpenCL/vendors").glob("pocl*.icd"))
    require("bpf", has_driver, "PoCL is missing: apt-get install pocl-opencl-icd")
    has_binding = importlib.util.find_spec("pyopencl") is not None
    require("bpf", has_binding, "pyopencl is missing: pip install pyopencl")


@pytest.fixture(scope="session")
def fakes(bpf_tier: None) -> Path:
    """Directory of the fake libcuda.so.1 and of its compiled program."""
    return build_fakes()


@pytest.fixture(scope="session")
def environment(fakes: Path) -> dict[str, str]:
    """Environment in which programs find the fake driver."""
    return fake_environment(fakes)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the recorder writes."""
    return tmp_path / "test.ogfcap"


@pytest.fixture(scope="module")
def side_by_side(bpf_tier: None) -> Iterator[None]:
    """For modules with agents: see `host_lock`."""
    with agents_side_by_side():
        yield
