# SPDX-License-Identifier: Apache-2.0
"""`record` on a host whose NVML is a double: counters are in the file, on the devices on which executions are."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import Devices
from otel_gpuflame.events.records import CaptureStart, Watermark
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.fakes.nvml.build import build_nvml
from tests.integration.inject.session import environment
from tests.integration.inject.test_recorded import of, read, recorded, rows_of

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]
FAKE_UUID = "GPU-66616b65-2d63-7564-612d-6465762d0000"


@pytest.fixture
def variables(library: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of a recorder that finds NVML, and of programs on the fake driver."""
    variables = environment(library, FAKE_CUDA_KERNEL_NS="20000")
    directories = f"{build_nvml(tmp_path).parent}:{variables.get('LD_LIBRARY_PATH', '')}"
    return {**variables, "LD_LIBRARY_PATH": directories}


def has_shares(output: Path) -> bool:
    """Whether the file, which is being written, has some."""
    with contextlib.suppress(CaptureFileError), ReplaySource(output) as source:
        found = [each.rows["metric"] for each in of(list(source.events()), DeviceMetrics)]
        return any(DeviceMetric.SM_ACTIVE in metrics for metrics in found)
    return False


def test_counters_are_in_the_file(variables: dict[str, str], tmp_path: Path) -> None:
    """With times of the capture, under the number that executions have; `replay` shows them."""
    output = tmp_path / "test.ogfcap"
    with recorded(output, variables) as program:
        program.wait_until_captured()
        program.do("launch", count=20)
        program.finish_work(1 + 2 * 20)
        # Shares are of the time between two readings, which are a second apart.
        program.recorder.wait_for(lambda: has_shares(output), "two readings in the file")
    events = read(output)
    (start,) = of(events, CaptureStart)
    last_ns = max(event.time_ns for event in of(events, Watermark))
    metrics = np.concatenate(
        [np.empty(0, DEVICE_METRIC), *(e.rows for e in of(events, DeviceMetrics))]
    )
    assert len(metrics)
    assert (metrics["time_ns"] > start.time_ns).all()
    assert (metrics["time_ns"] < last_ns).all()
    (number,) = set(metrics["device"].tolist())
    assert set(rows_of(events, GpuKind.KERNEL)["device"].tolist()) == {number}
    last = {device.index: device for event in of(events, Devices) for device in event.devices}
    assert last[number].uuid == FAKE_UUID
    assert last[number].multiprocessors > 0
    result = replay(output, AggregateOptions(window_ns=None))
    (use,) = result.devices
    assert use.memory_used == 600
    assert use.means[DeviceMetric.SM_ACTIVE] == pytest.approx(0.02)
    command = [sys.executable, "-m", "otel_gpuflame", "replay", str(output)]
    wide = {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run(command, env=wide, capture_output=True, text=True, check=True).stdout
    assert re.search(
        r"What the counters of devices said\n.*GPU-6661\w+  busy 1.0%, SMs 2.0%", shown
    )


def test_without_nvml_a_recording_says_so_and_goes_on(library: Path, tmp_path: Path) -> None:
    """Once; there are no counters, and everything else is there."""
    output = tmp_path / "test.ogfcap"
    with recorded(output, environment(library)) as program:
        program.wait_until_captured()
        program.do("launch", count=3)
        program.finish_work(1 + 2 * 3)
    events = read(output)
    assert of(events, DeviceMetrics) == []
    assert len(rows_of(events, GpuKind.KERNEL)) == 3
