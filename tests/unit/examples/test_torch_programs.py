"""The examples with PyTorch on the CPU: `OGF_TORCH_PYTHON` names an interpreter that has it, where this has not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PYTHON = os.environ.get("OGF_TORCH_PYTHON", sys.executable)
REQUESTS = 24
LIMIT_S = 300


def needs(*modules: str) -> None:
    """Skip unless that interpreter has all of these."""
    for module in modules:
        found = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
        if found.returncode:
            pytest.skip(f"{module} is not installed: see OGF_TORCH_PYTHON")


def command(program: str, *arguments: object) -> list[str]:
    """Command line of an example."""
    return [PYTHON, str(EXAMPLES / program), *map(str, arguments)]


def spans_of(traces: Path) -> list[dict[str, Any]]:
    """All spans of a file."""
    return [
        span
        for line in traces.read_text().splitlines()
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    ]


@pytest.fixture
def environment() -> dict[str, str]:
    """In which programs find this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def service(
    tmp_path: Path, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service with a small model, and its port; it ends when all requests are answered."""
    needs("torch", "fastapi", "uvicorn", "opentelemetry.instrumentation.fastapi")
    size = ("--layers", 1, "--width", 64, "--requests", REQUESTS)
    where = ("--device", "cpu", "--port", 0, "--traces", tmp_path / "service.json")
    with subprocess.Popen(
        command("inference/serve.py", *size, *where),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip().rpartition(":")[2]
        finally:
            process.send_signal(signal.SIGKILL)


def test_the_service_answers_and_ends_when_it_shall(
    service: tuple[subprocess.Popen[str], str], tmp_path: Path, environment: dict[str, str]
) -> None:
    """Each caller gets as many tokens as it asked for, and is in as many steps; its trace goes on in the service."""
    process, port = service
    calls = tmp_path / "callers.json"
    load = command("inference/load.py", "--port", port, "--requests", REQUESTS, "--traces", calls)
    called = subprocess.run(load, env=environment, capture_output=True, text=True, check=False)
    assert called.returncode == 0, called.stderr
    assert process.wait(LIMIT_S) == 0
    served = spans_of(tmp_path / "service.json")
    names = Counter(span["name"] for span in served)
    assert names["POST /infer"] == names["prefill"] == REQUESTS
    assert names["load_model"] == names["warm_up"] == 1
    callers = {(span["traceId"], span["spanId"]) for span in spans_of(calls)}
    servers = [span for span in served if span["name"] == "POST /infer"]
    assert {(span["traceId"], span["parentSpanId"]) for span in servers} == callers
    steps: Counter[str] = Counter()
    for span in served:
        steps.update(link["spanId"] for link in span.get("links", ()))
    assert sorted(steps.values()) == sorted(1 + number % 20 for number in range(REQUESTS))


def test_a_request_that_is_too_long_is_refused(
    service: tuple[subprocess.Popen[str], str],
) -> None:
    """By name of the field, before the model sees it."""
    connection = HTTPConnection("127.0.0.1", int(service[1]), timeout=LIMIT_S)
    body = json.dumps({"prompt_tokens": 513, "new_tokens": 1})
    connection.request("POST", "/infer", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 422
    assert "prompt_tokens" in answer.read().decode()
    connection.close()


def test_each_step_of_training_is_a_trace(tmp_path: Path, environment: dict[str, str]) -> None:
    """Those of the warm-up included, all written by the end."""
    needs("torch", "opentelemetry.exporter.otlp.proto.common")
    traces = tmp_path / "traces.json"
    size = ("--steps", 2, "--warmup", 1, "--batch", 1)
    train = command("train_step.py", "--device", "cpu", *size, "--traces", traces)
    done = subprocess.run(train, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spans = spans_of(traces)
    assert [span["name"] for span in spans] == ["train_step"] * 3
    assert len({span["traceId"] for span in spans}) == 3
