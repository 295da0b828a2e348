# SPDX-License-Identifier: Apache-2.0
"""Graphs from capture to replay, on the fake driver: probes see what was captured, CUPTI's double what ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_TIME
from tests.integration.bpf.recording import samples_of, total
from tests.integration.inject.session import environment
from tests.integration.inject.test_recorded import read, recorded, rows_of

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]

KERNELS = ["_Z4gemmv", "_Z4reluv", "_Z4gemmv"]
REPLAYS = 5


def test_nodes_stand_under_the_lines_that_were_captured(library: Path, tmp_path: Path) -> None:
    """Beside the line that launches the graph; what was captured is no submission."""
    output = tmp_path / "test.ogfcap"
    with recorded(output, environment(library, FAKE_CUDA_KERNEL_NS="20000")) as program:
        program.wait_until_captured()
        program.do("make_graph", kernels=KERNELS)
        program.do("launch", kernel="plain", count=2)
        program.do("launch_graph", count=REPLAYS)
        program.finish_work(1 + 2 * 2 + REPLAYS * len(KERNELS))
    executions = rows_of(read(output), GpuKind.KERNEL)
    result = replay(output, AggregateOptions(window_ns=None))
    assert result.ledger.dropped["launch", "captured"] == len(KERNELS)
    assert total(samples_of(result.bundles, GPU_LAUNCH)) == 2 + REPLAYS
    samples = samples_of(result.bundles, GPU_TIME)
    assert total(samples) == int((executions["end_ns"] - executions["start_ns"]).sum())
    of_graph = [each for each in samples if "cuGraphLaunch" in [f.name for f in each.frames]]
    assert total(of_graph) == REPLAYS * len(KERNELS) * 20_000
    for sample in of_graph:
        names = [frame.name for frame in sample.frames]
        place = names.index("cuGraphLaunch")
        assert names[place + 1] == "[captured at, estimated]"
        assert "Target.do_launch_graph" in names[:place]
        assert "Target.do_make_graph.<locals>.submit" in names[place:]
        assert names[-2:] in [["cuLaunchKernel", "gemm"], ["cuLaunchKernel", "relu"]]
