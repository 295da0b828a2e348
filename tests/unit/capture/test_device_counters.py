"""Counters of devices as events, read in a thread through the real binding on a double of NVML's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.capture.device_counters import DeviceCounters, metric_events
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.capture.nvml import DeviceReadings, Reading
from otel_gpuflame.events.device_metrics import DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import Devices
from tests.fakes.nvml.build import build_nvml

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, logging, sys, time
from otel_gpuflame.capture.device_counters import DeviceCounters
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
began_ns = time.monotonic_ns()
with DeviceCounters(every_s=float(sys.argv[1])) as counters:
    while not (readings := counters.take()):
        time.sleep(0.001)
    time.sleep(0.11)
    counters.ask()
    counters.wait_for_answer()
    readings += counters.take()
print(json.dumps({"began_ns": began_ns, "ended_ns": time.monotonic_ns(), "failures": counters.failures, "readings": [
    [r.uuid, r.time_ns, [[v.metric.name, v.value, v.interval_ns] for v in r.readings]] for r in readings]}))
"""


def sampled(tmp_path: Path, **settings: str) -> tuple[dict[str, Any], str]:
    """What a process says that reads once, waits until shares can be had, and asks again; what it logs."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build_nvml(tmp_path).parent),
        "PYTHONPATH": str(ROOT),
        **settings,
    }
    # An hour: the second round comes since it was asked for.
    command = [sys.executable, "-c", PROGRAM, "3600"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, done.stderr


def test_a_round_that_was_asked_for_comes_at_once(tmp_path: Path) -> None:
    """With shares since the round before, in our clock; nothing is taken twice."""
    answer, _ = sampled(tmp_path)
    (first, second) = answer["readings"]
    assert answer["began_ns"] < first[1] < second[1] < answer["ended_ns"]
    shares = {metric: interval_ns for metric, _, interval_ns in second[2] if interval_ns}
    assert shares["GRAPHICS_ACTIVE"] == second[1] - first[1]


def test_a_device_without_gpm_is_said_once(tmp_path: Path) -> None:
    """Memory and clocks come all the same."""
    answer, log = sampled(tmp_path, FAKE_NVML_REFUSE="nvmlGpmQueryDeviceSupport")
    assert log.count("Fake GPU 0 has no GPM") == 1
    assert {metric for metric, _, _ in answer["readings"][1][2]} == {
        "MEMORY_USED",
        "MEMORY_TOTAL",
        "CLOCK_REASONS",
    }


def test_refused_readings_are_counted(tmp_path: Path) -> None:
    """A device that has fallen off the bus."""
    settings = {"FAKE_NVML_REFUSE": "nvmlDeviceGetMemoryInfo", "FAKE_NVML_ERROR": "15"}
    assert sampled(tmp_path, **settings)[0]["failures"] == 2


def test_without_a_driver_nothing_comes_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; to ask for what will never come takes no time."""
    caplog.set_level("INFO")
    with DeviceCounters(every_s=0.001) as counters:
        counters.wait_for_answer()
        counters.ask()
        counters.wait_for_answer()
        assert (counters.take(), counters.latest(), counters.failures) == ([], (), 0)
    (record,) = caplog.records
    assert "NVML cannot be used" in record.getMessage()


def test_devices_come_before_their_values() -> None:
    """And once; values keep time, interval and process."""
    devices = HostDevices()
    values = (
        Reading(DeviceMetric.MEMORY_USED, 5.0),
        Reading(DeviceMetric.PROCESS_SM, 0.5, 30, 77),
    )
    readings = [DeviceReadings(uuid, "H200", 100, values) for uuid in ("GPU-x", "GPU-y")]
    announced, metrics = metric_events(readings, devices)
    assert isinstance(announced, Devices)
    assert [(d.index, d.uuid) for d in announced.devices] == [(0, "GPU-x"), (1, "GPU-y")]
    assert isinstance(metrics, DeviceMetrics)
    assert metrics.rows.tolist() == [
        (100, 0, 5.0, 0, 0, DeviceMetric.MEMORY_USED),
        (100, 30, 0.5, 0, 77, DeviceMetric.PROCESS_SM),
        (100, 0, 5.0, 1, 0, DeviceMetric.MEMORY_USED),
        (100, 30, 0.5, 1, 77, DeviceMetric.PROCESS_SM),
    ]
    assert [type(event) for event in metric_events(readings, devices)] == [DeviceMetrics]
    assert metric_events([], devices) == []
