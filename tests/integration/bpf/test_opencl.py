# SPDX-License-Identifier: Apache-2.0
"""OpenCL on PoCL: the loader is found when the process maps it, kernels have names, waits have lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import app_command
from tests.fakes.steps import STAYS
from tests.integration.bpf.apps.opencl_waits import RECTANGLE
from tests.integration.bpf.recording import Recording, app, record_command, total
from tests.integration.bpf.session import keep_step, record_in_step, running

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("opencl")]

RECTANGLES = "clEnqueueReadBufferRect", "clEnqueueWriteBufferRect", "clEnqueueCopyBufferRect"


def loader_of_pyopencl() -> Path:
    """The OpenCL loader that this Python maps for pyopencl: a wheel brings its own."""
    import pyopencl  # noqa: F401, PLC0415 - after the check that it is there

    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in maps if "/libOpenCL" in line)


def record_held(
    output: Path,
    command: list[str],
    environment: dict[str, str],
    *,
    loader: Path,
    options: Sequence[object] = (),
) -> Recording:
    """Record a program that holds, and let it go on when the loader that it maps has been probed."""
    command = record_command(output, *command, options=options)
    with running(command, {**environment, STAYS: "1"}) as recorder:
        recorder.truth()
        wanted = f" probes on {loader}\n"
        recorder.wait_for(lambda: wanted in recorder.stderr.text(), "probes on a mapped loader")
        keep_step(recorder, recorder, output)
        code = recorder.finish()
    assert code == 0, recorder.stderr.text()
    return Recording(output, code, recorder.stdout.text(), recorder.stderr.text())


@pytest.mark.parametrize("count", [23, 1_009])
def test_every_enqueue_is_counted_with_a_loader_found_at_run_time(
    count: int, tmp_path: Path, output: Path, environment: dict[str, str]
) -> None:
    """A loader that no search path knows is probed when a process maps it; then nothing is missed."""
    # A file of its own, named as wheels name it: nobody else has probed this inode.
    loader = tmp_path / "libOpenCL-0123abcd.so.1.0.0"
    loader.write_bytes(loader_of_pyopencl().read_bytes())
    command = ["env", f"LD_PRELOAD={loader}", *app_command("app_opencl", count, "--hold")]
    recording = record_held(output, command, environment, loader=loader)
    capture = recording.capture
    assert len(capture.kind(Kind.LAUNCH)) == recording.truth["enqueues"] == count
    assert capture.count("launch", "seen") == count
    assert capture.pending() == {}
    samples = recording.samples(GPU_LAUNCH)
    assert total(samples) == count
    assert {(s.frames[-1].name, s.frames[-1].kind) for s in samples} == {
        (recording.truth["kernel"], FrameKind.GPU_OPENCL)
    }


def test_a_loader_of_the_wheel_needs_no_help(output: Path, environment: dict[str, str]) -> None:
    """Recording a plain pyopencl program counts every enqueue and its wait for the queue.

    The program only waits until the recorder has looked at what it has mapped.
    """
    command = app_command("app_opencl", 1_009, "--hold")
    recording = record_in_step(output, *command, environment=environment)
    assert recording.exit_code == 0, recording.stderr
    assert len(recording.capture.kind(Kind.LAUNCH)) == recording.truth["enqueues"] == 1_009
    assert len(recording.capture.api("clFinish")) == recording.truth["finishes"] == 1


@pytest.fixture(scope="module")
def waits(
    tmp_path_factory: pytest.TempPathFactory, opencl: None, environment: dict[str, str]
) -> Recording:
    """A recording of every kind of OpenCL wait."""
    output = tmp_path_factory.mktemp("waits") / "test.ogfcap"
    command = app("opencl_waits", "--hold")
    return record_held(output, command, environment, loader=loader_of_pyopencl())


def test_opencl_waits_are_on_the_python_line_that_waits(waits: Recording) -> None:
    """clFinish, clWaitForEvents and blocking copies are waits on their lines; other copies are none."""
    lines = waits.truth["lines"]
    blamed = {
        (function, frame.name)
        for sample in waits.samples(GPU_WAIT)
        for frame in sample.frames
        if frame.name.startswith("cl")
        for function, line in sample.python()
        if lines.get(function) == line
    }
    assert blamed >= {
        ("finish", "clFinish"),
        ("wait_for_event", "clWaitForEvents"),
        ("blocking_read", "clEnqueueReadBuffer"),
        ("blocking_write", "clEnqueueWriteBuffer"),
        ("blocking_map", "clEnqueueMapBuffer"),
        ("blocking_image_map", "clEnqueueMapImage"),
        ("blocking_rectangles", "clEnqueueReadBufferRect"),
    }
    assert not [call for function, call in blamed if function == "read_later"]


def test_opencl_copies_have_their_bytes(waits: Recording) -> None:
    """Reads, writes and copies between buffers count the bytes that were asked for."""
    size = waits.truth["size_bytes"]
    by_call = {
        name: waits.capture.api(name)["bytes"].tolist()
        for name in ("clEnqueueReadBuffer", "clEnqueueWriteBuffer", "clEnqueueCopyBuffer")
    }
    assert by_call == {
        "clEnqueueReadBuffer": [size, size],
        "clEnqueueWriteBuffer": [size],
        "clEnqueueCopyBuffer": [size // 2],
    }
    assert waits.capture.api("clEnqueueFillBuffer")["bytes"].tolist() == [size]
    rectangle = math.prod(RECTANGLE)
    assert {
        name: waits.capture.api(name)["bytes"].tolist()
        for name in (*RECTANGLES, "clEnqueueMapBuffer", "clEnqueueMapImage")
    } == {
        **{name: [rectangle] for name in RECTANGLES},
        # What a map copies depends on where the memory is: nothing is claimed.
        "clEnqueueMapBuffer": [0],
        "clEnqueueMapImage": [0],
    }
    assert total(waits.samples(GPU_COPY)) == 3 * size + size // 2 + 3 * rectangle


def test_kernels_of_a_whole_program_have_names(output: Path, environment: dict[str, str]) -> None:
    """Kernels made all at once come without a name, and have one when the program has asked for it."""
    recording = record_held(
        output, app("opencl_program", "--hold"), environment, loader=loader_of_pyopencl()
    )
    leaves: Counter[str] = Counter()
    for sample in recording.samples(GPU_LAUNCH):
        leaves[sample.frames[-1].name] += sample.value
    assert leaves == recording.truth["launches"]


def test_opencl_flags_and_sizes_are_as_passed(waits: Recording) -> None:
    """The blocking argument, and the sizes of one- and two-dimensional launches."""
    size = waits.truth["size_bytes"] // 4
    blocking = waits.capture.api("clEnqueueReadBuffer")["flags"] & CallFlag.BLOCKING_ARG
    assert (blocking != 0).tolist() == [False, True]
    launches = waits.capture.kind(Kind.LAUNCH)
    assert launches["grid"].tolist() == [[size, 1, 1], [size // 64, 64, 1]]
    assert launches["block"].tolist() == [[0, 0, 0], [4, 16, 0]]
    assert len(set(launches["stream"].tolist())) == 1
