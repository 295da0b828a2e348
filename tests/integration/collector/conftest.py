# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the `collector` tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.collector.build import (
    COLLECTOR,
    JAEGER,
    GoProgram,
    build_program,
    cached_binary,
    default_cache_dir,
    find_go,
)
from tests.integration.collector.collector import RunningCollector
from tests.integration.collector.configs import RELAY_CONFIG, sink_addresses
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require


@pytest.fixture(scope="session")
def collector_binary() -> Path:
    """The Collector, built from Go modules on first use."""
    return built(COLLECTOR)


@pytest.fixture(scope="session")
def jaeger_binary() -> Path:
    """Jaeger, built likewise."""
    return built(JAEGER)


def built(program: GoProgram) -> Path:
    """The executable; where it cannot be built, the test is skipped, or fails if its tier is forced."""
    available = find_go() is not None or cached_binary(default_cache_dir(), program).exists()
    reason = f"there is no Go of 1.21 or newer, so the {program.title} cannot be built"
    require("collector", available, reason)
    return build_program(program)


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """An OTLP backend that keeps what it gets."""
    with OtlpSink() as running:
        yield running


@pytest.fixture
def relay(collector_binary: Path, sink: OtlpSink) -> Iterator[RunningCollector]:
    """A Collector that sends each profiles request on to `sink` over both transports."""
    env = sink_addresses(sink)
    with RunningCollector(collector_binary, RELAY_CONFIG, env=env) as running:
        yield running
