# SPDX-License-Identifier: Apache-2.0
"""`record` of a program that uses CUDA and OpenCL: both libraries are in it, and what either saw is in the profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.events.wire_gpu import LibraryState
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_TIME
from tests.fakes.app_opencl import CUDA_KERNEL
from tests.fakes.build import app_command
from tests.integration.bpf.recording import record_command
from tests.integration.bpf.session import running
from tests.integration.inject.region import Region, find_regions
from tests.integration.inject.session import environment

pytestmark = [
    pytest.mark.bpf,
    pytest.mark.inject,
    pytest.mark.usefixtures("bpf_tier", "opencl_tier"),
]

ENQUEUES, LAUNCHES, LAUNCH_NS = 300, 200, 20_000


def are_leased(pid: int) -> bool:
    """Whether both libraries record for an exporter."""
    regions = [Region(pid, link) for link in find_regions(pid)]
    return len(regions) == 2 and all(
        region.state is LibraryState.CAPTURING and int(region.control["lease_until_ns"][0]) > 0
        for region in regions
    )


def test_what_both_libraries_saw_is_told(library: Path, tmp_path: Path) -> None:
    """Each execution under its launch, whichever driver it went through, and the time of each to the nanosecond."""
    output = tmp_path / "both.ogfcap"
    command = app_command("app_opencl", ENQUEUES, "--cuda", LAUNCHES, "--hold")
    variables = environment(library, FAKE_CUDA_KERNEL_NS=str(LAUNCH_NS))
    with running(record_command(output, *command), variables) as recorder:
        pid = int(recorder.truth()["pid"])
        recorder.wait_for(lambda: are_leased(pid), "two windows")
        recorder.go()
        assert recorder.finish() == 0, recorder.stderr.text()
        truth = recorder.truth(1)
    result = replay(output, AggregateOptions(window_ns=None))
    (account,) = [a for a in result.ledger.accounts() if a.kind == "execution"]
    assert account.seen == account.profiled == ENQUEUES + LAUNCHES
    assert not [text for text in result.ledger.remarks if "without a stack" in text]
    found: Counter[tuple[str, str]] = Counter()
    for bundle in result.bundles:
        (profile,) = [p for p in bundle.profiles if p.sample_type == GPU_TIME]
        for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
            call, kernel = (bundle.frames[index] for index in bundle.stacks[stack][-2:])
            found[call.name, kernel.system_name or kernel.name] += value
    assert found == {
        ("clEnqueueNDRangeKernel", truth["kernel"]): truth["kernel_ns"],
        ("cuLaunchKernel", CUDA_KERNEL): LAUNCHES * LAUNCH_NS,
    }
