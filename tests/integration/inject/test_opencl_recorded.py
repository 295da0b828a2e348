# SPDX-License-Identifier: Apache-2.0
"""`record` of an OpenCL program: what PoCL executed is under the lines that enqueued it, to the nanosecond."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_NAME
from otel_gpuflame.events.executions import Executions
from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.events.records import Calls
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_TIME, GPU_WAIT
from tests.fakes.build import app_command
from tests.integration.bpf.recording import record_command
from tests.integration.bpf.session import attached, running
from tests.integration.inject.test_recorded import is_capturing
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]

COUNT: Final = 500
Samples = list[tuple[list[Any], int]]


class Recording:
    """A recorded program: what it says of itself, and what its profile says."""

    def __init__(self, path: Path, truth: dict[str, Any]) -> None:
        self.truth = truth
        self._path = path
        self.result = replay(path, AggregateOptions(window_ns=None))

    def samples(self, sample_type: Any) -> Samples:
        """Stacks, root first, and values."""
        found: Samples = []
        for bundle in self.result.bundles:
            (profile,) = [p for p in bundle.profiles if p.sample_type == sample_type]
            for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
                found.append(([bundle.frames[i] for i in bundle.stacks[stack]], value))
        return found

    def finish_met_a_kernel(self) -> bool:
        """Whether some kernel ended within a call of clFinish."""
        with ReplaySource(self._path, call_dtype=wire.CALL) as source:
            events = list(source.events())
        calls = np.concatenate([event.rows for event in events if isinstance(event, Calls)])
        executions = np.concatenate([e.rows for e in events if isinstance(e, Executions)])
        ends_ns = executions["end_ns"][executions["kind"] == GpuKind.KERNEL]
        return any(
            ((ends_ns > call["start_ns"]) & (ends_ns <= call["end_ns"])).any()
            for call in calls[calls["api"] == BY_NAME["clFinish"].id]
        )


def require_platform() -> None:
    """Something that runs OpenCL."""
    vendors = list(Path("/etc/OpenCL/vendors").glob("*.icd"))
    require("inject", bool(vendors), "no OpenCL platform: apt-get install pocl-opencl-icd")


@pytest.fixture(scope="module")
def recording(bpf_tier: None, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The program holds until its commands are recorded."""
    require_platform()
    output = tmp_path_factory.mktemp("opencl") / "opencl.ogfcap"
    command = app_command("app_opencl", COUNT, "--hold")
    with running(record_command(output, *command)) as recorder:
        pid = int(recorder.truth()["pid"])
        recorder.wait_for(lambda: is_capturing(pid), "a window")
        recorder.go()
        assert recorder.finish() == 0, recorder.stderr.text()
        truth: dict[str, Any] = json.loads(recorder.stdout.text().splitlines()[-1])
    return Recording(output, truth)


def test_gpu_time_is_what_the_program_measured(recording: Recording) -> None:
    """Σ over all kernels, in nanoseconds of OpenCL's own event profiling."""
    samples = recording.samples(GPU_TIME)
    assert sum(value for _, value in samples) == recording.truth["kernel_ns"]
    assert {frames[-1].name for frames, _ in samples} == {recording.truth["kernel"]}
    assert {frames[-1].kind for frames, _ in samples} == {FrameKind.GPU_OPENCL}
    assert {frames[-2].name for frames, _ in samples} == {"clEnqueueNDRangeKernel"}


def test_a_running_program_that_was_started_with_what_env_prints(
    bpf_tier: None, tmp_path: Path
) -> None:
    """As a service is: `record --pid` has its times too."""
    require_platform()
    output = tmp_path / "attached.ogfcap"
    script = f'eval "$({shlex.quote(sys.executable)} -m otel_gpuflame env)"; exec "$@"'
    command = ["sh", "-c", script, "sh", *app_command("app_opencl", COUNT, "--hold")]
    with running(command) as target:
        pid = int(target.truth()["pid"])
        with attached(output, pid) as recorder:
            recorder.wait_for(lambda: is_capturing(pid, leased=True), "a window")
            target.go()
            assert target.finish() == 0, target.stderr.text()
            assert recorder.finish() == 0, recorder.stderr.text()
        truth = json.loads(target.stdout.text().splitlines()[-1])
    samples = Recording(output, truth).samples(GPU_TIME)
    assert sum(value for _, value in samples) == truth["kernel_ns"]


def test_every_execution_has_its_launch(recording: Recording) -> None:
    """As many executions as enqueues, each under one."""
    (account,) = [a for a in recording.result.ledger.accounts() if a.kind == "execution"]
    assert account.seen == account.profiled == COUNT
    assert not [text for text in recording.result.ledger.remarks if "without a stack" in text]
    assert sum(value for _, value in recording.samples(GPU_LAUNCH)) == COUNT


def test_the_wait_names_the_kernel_that_it_waited_for(recording: Recording) -> None:
    """A finish waits for the kernels in its queue; on a busy machine these may have ended before it begins."""
    waits = [(f, v) for f, v in recording.samples(GPU_WAIT) if "clFinish" in {x.name for x in f}]
    assert waits
    leaves = {frames[-1].name for frames, _ in waits}
    assert leaves <= {recording.truth["kernel"], "[gpu idle]", "[driver]"}
    assert (recording.truth["kernel"] in leaves) is recording.finish_met_a_kernel()
