"""The counters of devices, through the real binding, on a double of NVML's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.capture.nvml import bus_id
from otel_gpuflame.events.device_metrics import DeviceMetric
from tests.fakes.nvml.build import build_nvml

ROOT = Path(__file__).parents[3]
NS = 1_000_000_000

PROGRAM = """
import json, sys
from otel_gpuflame.capture.nvml import NvmlSampler
from otel_gpuflame.errors import SourceUnavailable
try:
    with NvmlSampler() as sampler:
        rounds = [sampler.sample(int(now_ns)) for now_ns in sys.argv[1:]]
except SourceUnavailable as error:
    print(json.dumps({"error": str(error)}))
    sys.exit(0)
boards = {place: [board.uuid, board.model] for place, board in sampler.boards.items()}
print(json.dumps({"failures": sampler.failures, "boards": boards, "rounds": [[
    [each.uuid, each.model, [[r.metric.name, r.value, r.interval_ns, r.tgid] for r in each.readings]]
    for each in devices] for devices in rounds]}))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double, compiled."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def sample(library: Path, *times_ns: int, **settings: str) -> dict[str, Any]:
    """What a sampler in a process of its own says at these times; a sample that it does not free aborts the process."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        "PYTHONPATH": str(ROOT),
        **settings,
    }
    command = [sys.executable, "-c", PROGRAM, *map(str, times_ns)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(output.stdout)
    return answer


def values(device: list[Any]) -> dict[str, float]:
    """Readings of a device by metric."""
    return {metric: value for metric, value, _, tgid in device[2] if not tgid}


def test_shares_are_fractions_and_rates_are_bytes(library: Path) -> None:
    """Percent become fractions, MiB a second become bytes a second; metrics that a device lacks are left out."""
    first, second = sample(library, NS, 3 * NS)["rounds"]
    assert set(values(first[0])) == {"MEMORY_USED", "MEMORY_TOTAL", "CLOCK_REASONS"}
    uuid, model, readings = second[0]
    assert (uuid, model) == ("GPU-66616b65-2d63-7564-612d-6465762d0000", "Fake GPU 0")
    assert values(second[0]) == {
        "MEMORY_USED": 600,
        "MEMORY_TOTAL": 1000,
        "CLOCK_REASONS": 0x24,
        "GRAPHICS_ACTIVE": 0.01,
        "SM_ACTIVE": 0.02,
        "SM_OCCUPANCY": 0.03,
        "TENSOR_ACTIVE": 0.05,
        "DRAM_ACTIVE": 0.1,
        "PCIE_TRANSMIT": 20 * 2**20,
        "PCIE_RECEIVE": 21 * 2**20,
    }
    intervals = {metric: interval_ns for metric, _, interval_ns, _ in readings}
    assert intervals["SM_ACTIVE"] == 2 * NS
    assert intervals["MEMORY_USED"] == 0


def test_mig_instances_are_devices_of_their_own(library: Path) -> None:
    """Each instance has its UUID and its own counters; the device around them is not counted again."""
    _, second = sample(library, NS, 3 * NS, FAKE_NVML_DEVICES="2", FAKE_NVML_MIG="1")["rounds"]
    assert [each[0][:3] for each in second] == ["MIG", "MIG", "GPU"]
    assert [values(each)["SM_ACTIVE"] for each in second] == pytest.approx([1.02, 2.02, 0.12])


def test_samples_that_lie_too_close_give_no_share(library: Path) -> None:
    """NVML wants 100 ms between two samples; the next share is of all the time since the last sample."""
    rounds = sample(library, NS, NS + 50_000_000, 2 * NS)["rounds"]
    assert "SM_ACTIVE" not in values(rounds[1][0])
    assert "SM_ACTIVE" in values(rounds[2][0])
    (interval_ns,) = [i for metric, _, i, _ in rounds[2][0][2] if metric == "SM_ACTIVE"]
    assert interval_ns == NS


def test_processes_have_their_share_once(library: Path) -> None:
    """Samples that were reported are not reported again; pid 0 is nobody."""
    first, second = sample(library, NS, 3 * NS, FAKE_NVML_PROCESSES="77:50,78:20,77:30,0:9")[
        "rounds"
    ]
    processes = [(r[3], r[1]) for r in first[0][2] if r[0] == DeviceMetric.PROCESS_SM.name]
    assert processes == [(77, 0.4), (78, 0.2)]
    assert not [r for r in second[0][2] if r[0] == DeviceMetric.PROCESS_SM.name]


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("nvmlGpmQueryDeviceSupport", "SM_ACTIVE"),
        ("nvmlGpmMetricsGet", "SM_ACTIVE"),
        ("nvmlGpmSampleGet", "SM_ACTIVE"),
        ("nvmlDeviceGetMemoryInfo", "MEMORY_USED"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "CLOCK_REASONS"),
    ],
)
@pytest.mark.parametrize(("error", "failures"), [(3, False), (15, True)])
def test_what_a_device_refuses_is_left_out(
    library: Path, function: str, missing: str, error: int, failures: bool
) -> None:
    """Not supported (3) is no failure, a lost GPU (15) is counted; the other readings come all the same."""
    answer = sample(
        library, NS, 3 * NS, 5 * NS, FAKE_NVML_REFUSE=function, FAKE_NVML_ERROR=str(error)
    )
    last = values(answer["rounds"][2][0])
    assert missing not in last
    assert len(last) >= 2
    is_query = function == "nvmlGpmQueryDeviceSupport"
    assert (answer["failures"] > 0) == (failures and not is_query)


def test_a_device_without_mig_mode_is_whole(library: Path) -> None:
    """Most devices refuse to say whether MIG is on."""
    rounds = sample(library, NS, FAKE_NVML_REFUSE="nvmlDeviceGetMigMode")["rounds"]
    assert rounds[0][0][0].startswith("GPU-")


def test_no_driver_is_said_with_the_remedy(library: Path, tmp_path: Path) -> None:
    """Without NVML's library, or with one that cannot start, the message says what to do."""
    for settings in (
        {"LD_LIBRARY_PATH": str(tmp_path)},
        {"FAKE_NVML_REFUSE": "nvmlInit_v2", "FAKE_NVML_ERROR": "9"},
        {"FAKE_NVML_REFUSE": "nvmlDeviceGetCount_v2", "FAKE_NVML_ERROR": "4"},
    ):
        assert sample(library, NS, **settings)["error"].startswith("device counters: NVML")


def test_devices_are_known_by_their_place(library: Path) -> None:
    """As the kernel writes it, and whole, whatever instances they are cut into; one that hides its place has none."""
    two = {"FAKE_NVML_DEVICES": "2", "FAKE_NVML_MIG": "1"}
    boards = sample(library, NS, **two)["boards"]
    assert [(place, uuid[:4]) for place, (uuid, _) in boards.items()] == [
        ("0000:a0:00.0", "GPU-"),
        ("0000:a1:00.0", "GPU-"),
    ]
    hidden = sample(library, NS, FAKE_NVML_REFUSE="nvmlDeviceGetPciInfo_v3")
    assert hidden["boards"] == {}
    assert hidden["rounds"][0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("nowhere", "nowhere"),
        ("", ""),
    ],
)
def test_places_are_written_as_the_kernel_does(text: str, expected: str) -> None:
    """Four digits of the domain and more where it needs them, no capitals."""
    assert bus_id(text) == expected
