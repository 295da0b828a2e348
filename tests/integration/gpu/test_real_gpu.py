"""On a real GPU: what is captured equals what CUPTI counts, and the waiting line is the one that waits.

Needs an NVIDIA GPU, PyTorch and root. CI has none: `pytest -m gpu tests/integration/gpu` by hand.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.pipeline import ReplayResult, replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.top import top_python_lines, total
from tests.tiers import require

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]
TRAIN = ROOT / "examples" / "train_step.py"
STEPS = 25
WARMUP = 3


@pytest.fixture(autouse=True)
def _real_gpu() -> None:
    """Skip where there is no driver, or no right to load BPF."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        usable = driver.cuInit(0) == 0 and not hasattr(driver, "fake_cuda_replay")
    except OSError:
        usable = False
    require("gpu", usable and os.geteuid() == 0, "an NVIDIA GPU and root are needed")


def record(output: Path, *command: str) -> tuple[str, ReplayResult]:
    """Record a Python program; its standard output, and the capture as one window."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "otel_gpuflame",
            "record",
            "-o",
            str(output),
            "--",
            sys.executable,
            *command,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout, replay(output, AggregateOptions(window_ns=None))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReplayResult]:
    """A recording of the training example, with enough work to keep the GPU busy."""
    output = tmp_path_factory.mktemp("training") / "train.ogfcap"
    options = ("--steps", str(STEPS), "--warmup", str(WARMUP), "--layers", "4", "--batch", "256")
    return output, record(output, str(TRAIN), *options)[1]


def test_launches_equal_cupti(tmp_path: Path) -> None:
    """Every kernel, copy and set that torch.profiler (CUPTI) reports was seen as a submission, and no other."""
    stdout, result = record(
        tmp_path / "count.ogfcap", str(Path(__file__).with_name("app_profiler_count.py"))
    )
    truth = json.loads(stdout.splitlines()[-1])
    expected = truth["kernel"] + truth["gpu_memcpy"] + truth["gpu_memset"]
    assert truth["kernel"] > 0
    assert total(result.bundles, GPU_LAUNCH) == expected
    assert all(account.lost == 0 and account.pending == 0 for account in result.ledger.accounts())


def test_item_is_the_largest_wait(training: tuple[Path, ReplayResult]) -> None:
    """The line that calls .item() holds most of gpu_wait."""
    rows = top_python_lines(training[1].bundles, GPU_WAIT)
    line = next(
        n for n, text in enumerate(TRAIN.read_text().splitlines(), 1) if "= loss.item()" in text
    )
    assert rows[0].frame.name == "log_loss"
    assert rows[0].frame.line == line
    assert rows[0].value > total(training[1].bundles, GPU_WAIT) / 2


def test_every_step_has_its_span(training: tuple[Path, ReplayResult]) -> None:
    """Each step's wait is linked to a span of its own."""
    links = {
        bundle.links[index].span_id
        for bundle in training[1].bundles
        for profile in bundle.profiles
        if profile.sample_type == GPU_WAIT
        for index in profile.link.tolist()
        if index >= 0
    }
    assert len(links) == STEPS + WARMUP


def test_replay_is_byte_identical(training: tuple[Path, ReplayResult]) -> None:
    """Two replays of a recording give the same pprof and the same OTLP."""
    first, second = (
        replay(training[0], AggregateOptions(window_ns=None)).bundles for _ in range(2)
    )
    assert encode_pprof(first) == encode_pprof(second)
    one, other = (
        [request.SerializeToString(deterministic=True) for request in encode_otlp(bundles)]
        for bundles in (first, second)
    )
    assert one == other
