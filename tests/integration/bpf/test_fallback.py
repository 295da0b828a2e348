# SPDX-License-Identifier: Apache-2.0
"""Kernels without uprobe_multi: one uprobe a probe, the same events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpuflame.capture import attachments
from otel_gpuflame.capture.bpf import kernel
from otel_gpuflame.capture.libraries import GpuLibrary, file_offset_of, read_library
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import app_command
from tests.integration.bpf.inprocess import capture_held
from tests.integration.bpf.recording import samples_of, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

# Each uprobe takes about 0.1 s to detach on kernels from 6.13 on.
PROBED = ("cuLaunchKernel", "cuStreamSynchronize", "cuModuleGetFunction")


def read_few_points(path: Path) -> GpuLibrary | None:
    """The library with the probes of PROBED only."""
    library = read_library(path)
    if library is None:
        return None
    offsets = {file_offset_of(path, name) for name in PROBED}
    points = tuple(point for point in library.points if point.offset in offsets)
    return replace(library, points=points) if points else None


def test_single_uprobes_see_what_uprobe_multi_sees(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """Without uprobe_multi launches are exact, waits have their line, and kernels their names."""
    monkeypatch.setattr(kernel, "multi_is_supported", lambda _program_fd: False)
    monkeypatch.setattr(attachments, "read_library", read_few_points)
    live = capture_held(app_command("app_wait", 5, 23, "--hold"), environment)
    capture = live.capture
    assert capture.count("launch", "seen") == len(capture.api("cuLaunchKernel")) == 23
    assert len(capture.api("cuStreamSynchronize")) == live.truth["waits"] == 23
    assert capture.pending() == {}
    launches, waits = (samples_of(live.bundles, kind) for kind in (GPU_LAUNCH, GPU_WAIT))
    assert {sample.frames[-1].name for sample in launches} == {"saxpy"}
    assert 0 < total(waits) <= sum(live.truth["duration_ns"])
    for sample in waits:
        assert (live.truth["function"], live.truth["line"]) in sample.python()


def test_the_fallback_is_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says that uprobe_multi is missing, so that `doctor` can tell the cost."""
    monkeypatch.setattr(kernel, "multi_is_supported", lambda _program_fd: False)
    loaded = kernel.CaptureKernel()
    assert loaded.report.uprobe_multi is False
    loaded.close()
