# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the `collector` tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.collector.build import cached_binary, default_cache_dir, find_go
from tests.integration.collector.collector import RunningCollector, build_collector
from tests.integration.collector.configs import RELAY_CONFIG, sink_addresses
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require


@pytest.fixture(scope="session")
def collector_binary() -> Path:
    """The Collector, built from Go modules on first use."""
    available = find_go() is not None or cached_binary(default_cache_dir()).exists()
    require(
        "collector", available, "there is no Go of 1.21 or newer, so the Collector cannot be built"
    )
    return build_collector()


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
