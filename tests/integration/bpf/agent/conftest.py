# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the agent's tests: a driver of their own, and a backend."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bpf.agent.harness import build_short_lived, own_driver
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require


@pytest.fixture
def driver(fakes: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of programs on a driver library that no other process maps."""
    require(
        "bpf", shutil.which("bpftool") is not None, "bpftool is missing: apt-get install bpftool"
    )
    directory = tmp_path / "driver"
    directory.mkdir()
    return own_driver(fakes, directory)


@pytest.fixture
def short_lived(driver: dict[str, str]) -> Path:
    """A compiled program that launches and ends."""
    return build_short_lived(Path(driver["LD_LIBRARY_PATH"].split(":")[0]))


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """An OTLP backend."""
    with OtlpSink() as backend:
        yield backend
