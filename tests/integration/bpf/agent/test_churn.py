# SPDX-License-Identifier: Apache-2.0
"""Hundreds of short processes: all of their launches are counted, and nothing of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.bpf.agent.churn import MAX_GROWTH_KIB, Churn, Load
from tests.integration.bpf.agent.harness import FULL, agent, beacon
from tests.integration.collector.sink import OtlpSink

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

LOAD = Load(short=300, long=10, duration_s=40)


def test_short_processes_are_counted_and_forgotten(
    driver: dict[str, str], short_lived: Path, sink: OtlpSink
) -> None:
    """300 short and 10 long programs: books are exact, no memory, descriptors, links or map entries are left."""
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        figures = Churn(subject, sink, driver, short_lived, LOAD).run()
    print(figures)
    assert figures.exit_codes_differ == figures.outputs_differ == 0
    missing = {kind: made - figures.profiled[kind] for kind, made in figures.made.items()}
    assert all(count >= 0 for count in missing.values()), figures
    assert sum(missing.values()) <= figures.lost, figures
    before, after = figures.before, figures.after
    assert after.memory_kib - before.memory_kib <= MAX_GROWTH_KIB, figures
    assert after.descriptors <= before.descriptors + 2, figures
    assert after.own_links == before.own_links, figures
    assert after.stale_entries == 0, figures
