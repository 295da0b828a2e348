# SPDX-License-Identifier: Apache-2.0
"""What is run on a real device to compare a service's recording with its traces, on doubles of driver and CUPTI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.capture.cupti.inject import LIBRARY
from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from otel_gpuflame.profile.top import top_python_lines
from tests.integration.bpf.recording import ROOT
from tests.integration.gpu.span_checks import CheckError, check
from tests.integration.inject.session import FINISHED_S, environment
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("bpf_tier")]
REQUESTS = 64
LAYERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recording and the traces are, and what was said of them."""
    pytest.importorskip("fastapi", reason="pip install --group examples")
    pytest.importorskip("opentelemetry.instrumentation.fastapi", reason="likewise")
    require("inject", LIBRARY.exists(), f"{LIBRARY} is missing: make native")
    folder = tmp_path_factory.mktemp("spans")
    command = [sys.executable, "-m", "tests.integration.gpu.spans_recorded", str(folder)]
    done = subprocess.run(
        [
            *(*command, "service_attached", "--device", "driver", "--requests", str(REQUESTS)),
            *("--install", str(folder / "srv")),
        ],
        env=environment(None),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=FINISHED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "figures.json").write_text(done.stdout)
    return folder


def test_all_launches_and_executions_are_on_their_spans(folder: Path) -> None:
    """Counts are those of the service, in which a prompt takes four launches and a copy, a step eight launches."""
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    steps = figures["spans"]["gpu.batch"]
    launches = figures["launches"]
    assert launches["all"] == launches["on_a_span"] == LAYERS * REQUESTS + 2 * LAYERS * steps
    assert launches["by_kind_of_span"]["prefill"] == of_spans(REQUESTS, LAYERS)
    assert launches["by_kind_of_span"]["gpu.batch"] == of_spans(steps, 2 * LAYERS)
    for mode in ("local_root", "active"):
        for sample_type in ("gpu_wait", "gpu_time", "gpu_queue", "gpu_launch", "gpu_copy"):
            of_type = figures[mode][sample_type]
            assert of_type["all"] > of_type["unlinked"] == of_type["unlinked_when_divided"] == 0
    assert set(figures["by_command"].values()) == {LAYERS + 1}


def test_paths_are_those_of_a_server(folder: Path) -> None:
    """Innermost Python lines are in the installed copy; packages are under site-packages."""
    result = replay(folder / "service_attached.ogfcap", AggregateOptions(window_ns=None))
    files = {f.file for b in result.bundles for f in b.frames if f.kind is FrameKind.PYTHON}
    launching = top_python_lines(result.bundles, GPU_LAUNCH)
    assert {row.frame.file for row in launching} == {
        str(folder / "srv" / "inference" / "device.py")
    }
    ours = {file for file in files if "/otel_gpuflame/" in file}
    assert all("/site-packages/otel_gpuflame/" in file for file in ours)


def of_spans(spans: int, each: int) -> dict[str, int]:
    """As the figures have it where all spans have the same number of launches."""
    return {"spans": spans, "least": each, "most": each, "all": spans * each}


def test_a_launch_on_another_span_is_told(folder: Path, tmp_path: Path) -> None:
    """Traces in which two prompts have changed places are not those of this recording."""
    traces = (folder / "service_attached.json").read_text()
    first, *_, last = [
        span["spanId"]
        for line in traces.splitlines()
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
        if span["name"] == "prefill"
    ]
    exchanged = traces.replace(first, "?").replace(last, first).replace("?", last)
    (tmp_path / "exchanged.json").write_text(exchanged)
    with pytest.raises(CheckError, match="on a span that they were not made in"):
        check(folder / "service_attached.ogfcap", tmp_path / "exchanged.json")
