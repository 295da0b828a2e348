# SPDX-License-Identifier: Apache-2.0
"""A library takes as many descriptors as are counted for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.kernel import CaptureKernel

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


def test_descriptors_of_a_library_are_counted(fakes: Path) -> None:
    """While a window is open, with all of its probes."""
    kernel = CaptureKernel()
    attachments = Attachments(kernel.uprobes, in_windows=True)
    try:
        before = len(os.listdir("/proc/self/fd"))
        attachments.attach(fakes / "libcuda.so.1", 0)
        attachments.open_window()
        taken = len(os.listdir("/proc/self/fd")) - before
        (library,) = attachments.libraries
        assert taken == 1 + kernel.uprobes.descriptors(library.points) == 10
        attachments.close_window()
    finally:
        attachments.close()
        kernel.close()
