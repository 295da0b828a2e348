# SPDX-License-Identifier: Apache-2.0
"""The loader for kernels without BTF: BCC compiles the programs here, and the calls are the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture import attachments
from otel_gpuflame.capture.bpf import bcc_backend
from otel_gpuflame.capture.bpf.backend import Loader
from otel_gpuflame.capture.bpf.bcc_backend import BccKernel
from otel_gpuflame.capture.bpf.bcc_module import HEADERS_VARIABLE, find_bcc, find_headers
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import apis
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.apt import PackagesUnavailableError
from tests.fakes.build import app_command
from tests.integration.bpf.inprocess import capture_held
from tests.integration.bpf.recording import Recording, record_command, total
from tests.integration.bpf.session import record_in_step
from tests.integration.bpf.test_fallback import read_few_points
from tests.integration.bpf.test_opencl import loader_of_pyopencl, record_held
from tests.integration.kernels.debian import DEBIAN_12, kernel_headers
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

NO_PYTHON = "[no Python frames: the bcc loader does not read them]"
# What the programs for BCC cannot know.
OF_SPANS = CallFlag.HAS_SPAN | CallFlag.HAS_LOCAL_ROOT | CallFlag.SPAN_SAMPLED


def headers() -> Path:
    """Kernel headers of this host, or else Debian's: the programs touch no structure of the kernel."""
    found = find_headers(os.environ)
    if found is not None:
        return found
    try:
        return kernel_headers(DEBIAN_12)
    except PackagesUnavailableError as error:
        require("bpf", False, f"no kernel headers for BCC: {error}")
        raise


@pytest.fixture(scope="module")
def bcc(environment: dict[str, str]) -> dict[str, str]:
    """Environment in which BCC finds headers, and programs the fake driver."""
    require("bpf", find_bcc() is not None, "BCC is missing: apt-get install python3-bpfcc")
    return {**environment, HEADERS_VARIABLE: str(headers())}


def record_with(loader: str, output: Path, *command: object, env: dict[str, str]) -> Recording:
    """Record calls only, with one of the loaders."""
    options = ["--loader", loader, "--no-cpu", "--no-driver"]
    recording = record_in_step(output, *command, environment=env, options=options)
    assert recording.exit_code == 0, recording.stderr
    return recording


def numbered(handles: CallArray) -> list[int]:
    """Handles are addresses, which differ from run to run: number them as they come."""
    numbers: dict[int, int] = {0: 0}
    return [numbers.setdefault(handle, len(numbers)) for handle in handles.tolist()]


def test_every_call_is_the_same_as_with_libbpf(tmp_path: Path, bcc: dict[str, str]) -> None:
    """Every function of the fake driver: the same calls in the same order with the same arguments."""
    command = app_command("app_matrix")
    ours, theirs = (
        record_with(loader.value, tmp_path / loader.value, *command, env=bcc).capture
        for loader in (Loader.BCC, Loader.LIBBPF)
    )
    assert ours.pending() == theirs.pending() == {}
    first, second = ours.calls, theirs.calls
    assert set(first["api"].tolist()) == {
        api.id for api in apis.ALL if api.runtime is apis.Runtime.CUDA
    }
    assert len(first) == len(second)
    for column in ("api", "kind", "bytes", "grid", "block"):
        assert np.array_equal(first[column], second[column]), column
    assert np.array_equal(first["flags"], second["flags"] & ~np.uint8(OF_SPANS))
    for column in ("stream", "object"):
        assert numbered(first[column]) == numbered(second[column]), column
    assert [name.name for name in ours.names] == [name.name for name in theirs.names]


def test_launches_and_waits_are_exact(output: Path, bcc: dict[str, str]) -> None:
    """23 launches with their kernel's name, 23 waits with their length, all of one process that is described."""
    recording = record_with("bcc", output, *app_command("app_wait", 5, 23), env=bcc)
    capture = recording.capture
    assert len(capture.kind(Kind.LAUNCH)) == capture.count("launch", "seen") == 23
    waits = capture.kind(Kind.WAIT)
    recorded = (waits["end_ns"] - waits["start_ns"]).tolist()
    assert all(
        0 < inner <= outer
        for inner, outer in zip(recorded, recording.truth["duration_ns"], strict=True)
    )
    assert total(recording.samples(GPU_WAIT)) == sum(recorded)
    names = {sample.frames[-1].name for sample in recording.samples(GPU_LAUNCH)}
    assert names == {"saxpy"}
    assert capture.targets[recording.truth["pid"]]["service.name"] == "app_wait.py"
    assert len(set(capture.rows["process_start_ns"].tolist())) == 1
    assert capture.rows["process_start_ns"][0] > 0


@pytest.mark.parametrize("options", [(), ("--spin",)], ids=["block", "spin"])
def test_a_wait_says_how_the_cpu_waited(
    options: tuple[str, ...], output: Path, bcc: dict[str, str]
) -> None:
    """As many waits are blocked as have left the CPU by the driver's own count, and none of those that poll."""
    recording = record_with("bcc", output, *app_command("app_wait", 20, 9, *options), env=bcc)
    slept = recording.truth["slept"]
    assert (slept > 0) is (options == ())
    waits = recording.capture.kind(Kind.WAIT)
    assert int((waits["voluntary_switches"] > 0).sum()) == slept
    marks = {mark for sample in recording.samples(GPU_WAIT) for mark in sample.marks()}
    assert ("[blocked]" in marks, "[spin]" in marks) == (slept > 0, slept < len(waits))


def test_missing_python_frames_are_named(output: Path, bcc: dict[str, str]) -> None:
    """The stack of a Python program has a mark in their place, and the driver function at its end."""
    recording = record_with("bcc", output, *app_command("app_wait", 5, 3), env=bcc)
    for sample in recording.samples(GPU_WAIT):
        assert sample.frames[0].name == NO_PYTHON
        assert "cuStreamSynchronize" in [frame.name for frame in sample.frames]
    assert "no Python frames and no spans" in recording.stderr


def test_children_are_followed(output: Path, bcc: dict[str, str]) -> None:
    """A forked child and a started one, each with its own launches; threads are not taken for processes."""
    recording = record_with("bcc", output, *app_command("app_fork", 5, 7, 11), env=bcc)
    rows = recording.capture.kind(Kind.LAUNCH)
    made = {each["pid"]: each["launches"] for each in recording.truth["processes"]}
    assert {pid: int((rows["tgid"] == pid).sum()) for pid in made} == made
    assert set(rows["tgid"].tolist()) == set(made)
    assert recording.capture.pending() == {}


def test_threads_belong_to_their_process(output: Path, bcc: dict[str, str]) -> None:
    """Launches of four threads are exact for each."""
    command = app_command("app_launch", 1_009, "--threads", 4)
    recording = record_with("bcc", output, *command, env=bcc)
    rows = recording.capture.kind(Kind.LAUNCH)
    made = {thread["tid"]: thread["launches"] for thread in recording.truth["threads"]}
    assert {tid: int((rows["tid"] == tid).sum()) for tid in set(rows["tid"].tolist())} == made
    assert set(rows["tgid"].tolist()) == {recording.truth["pid"]}


@pytest.mark.usefixtures("opencl")
def test_opencl_is_recorded_with_a_loader_found_at_run_time(
    tmp_path: Path, output: Path, bcc: dict[str, str]
) -> None:
    """PoCL: the library is probed when the process maps it; then every enqueue is there, with its kernel's name."""
    library = tmp_path / "libOpenCL-0123abcd.so.1.0.0"
    library.write_bytes(loader_of_pyopencl().read_bytes())
    command = ["env", f"LD_PRELOAD={library}", *app_command("app_opencl", 23, "--hold")]
    recording = record_held(output, command, bcc, loader=library, options=["--loader", "bcc"])
    capture = recording.capture
    launches = capture.api("clEnqueueNDRangeKernel")
    assert len(launches) == recording.truth["enqueues"] == 23
    assert len(capture.kind(Kind.WAIT)) > 0
    assert capture.pending() == {}
    assert recording.truth["kernel"] in {name.name for name in capture.names}


def test_single_uprobes_see_the_same(monkeypatch: pytest.MonkeyPatch, bcc: dict[str, str]) -> None:
    """Where the kernel has no uprobe_multi, as before 6.6, every probe is attached by itself."""
    monkeypatch.setenv(HEADERS_VARIABLE, bcc[HEADERS_VARIABLE])
    monkeypatch.setattr(bcc_backend, "multi_is_supported", lambda _program_fd: False)
    monkeypatch.setattr(attachments, "read_library", read_few_points)
    live = capture_held(app_command("app_wait", 5, 23, "--hold"), bcc, loader=Loader.BCC)
    assert len(live.capture.api("cuLaunchKernel")) == 23
    assert len(live.capture.api("cuStreamSynchronize")) == 23
    assert live.capture.pending() == {}


def test_the_whole_host_is_refused(monkeypatch: pytest.MonkeyPatch, bcc: dict[str, str]) -> None:
    """These programs capture named processes only, and say so."""
    monkeypatch.setenv(HEADERS_VARIABLE, bcc[HEADERS_VARIABLE])
    kernel = BccKernel()
    with pytest.raises(SourceUnavailable, match="named processes only"):
        kernel.watch_host()
    kernel.close()


def test_headers_that_are_missing_are_an_error_of_one_line(
    tmp_path: Path, output: Path, bcc: dict[str, str]
) -> None:
    """It names the variable, and the command is not started."""
    ran = tmp_path / "ran"
    command = record_command(output, "touch", ran, options=["--loader", "bcc"])
    env = {**bcc, HEADERS_VARIABLE: str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"{HEADERS_VARIABLE}={tmp_path}" in line
    assert not ran.exists()


def test_headers_that_do_not_compile_are_an_error(
    tmp_path: Path, output: Path, bcc: dict[str, str]
) -> None:
    """What clang says is shown, then which headers those were."""
    (tmp_path / "include/linux").mkdir(parents=True)
    (tmp_path / "include/linux/kconfig.h").touch()
    command = record_command(output, "true", options=["--loader", "bcc"])
    env = {**bcc, HEADERS_VARIABLE: str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"cannot compile the capture programs with the headers in {tmp_path}" in done.stderr
    assert "Traceback" not in done.stderr
