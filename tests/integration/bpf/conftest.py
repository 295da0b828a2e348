# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the live tests: the doubles, built once, and the environment that finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.build import build_fakes, fake_environment


@pytest.fixture(scope="session")
def fakes() -> Path:
    """Directory of the fake libcuda.so.1 and of its compiled program."""
    return build_fakes()


@pytest.fixture
def environment(fakes: Path) -> dict[str, str]:
    """Environment in which programs find the fake driver."""
    return fake_environment(fakes)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the recorder writes."""
    return tmp_path / "test.ogfcap"
