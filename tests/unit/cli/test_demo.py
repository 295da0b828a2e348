"""`demo` with a recording of a service and its traces: the slowest request has a flame graph of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.cli import demo as demo_module
from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events.frames import Stack
from otel_gpuflame.events.records import CaptureStart, Event, Stacks, Watermark
from otel_gpuflame.events.wire import CallFlag
from tests.unit.cli.captures import LOSS, MAIN, STEP, run, write_capture
from tests.unit.profile.builders import (
    KEY,
    PROCESS,
    SAMPLED,
    START_NS,
    UNIX_OFFSET_NS,
    batch,
    call,
    target_event,
)

FAST, SLOW, BATCH = (bytes([number] * 8) for number in (1, 2, 3))
OTHER_KEY = type(KEY)(9, 9)
LAUNCHES = {FAST: 5, SLOW: 2, BATCH: 8}
SHARES = {FAST: 0.25, SLOW: 0.75}
MS = 1_000_000


def of_span(span_id: bytes) -> dict[str, Any]:
    """Columns of a call in a local root."""
    return {
        "flags": SAMPLED | CallFlag.HAS_LOCAL_ROOT,
        "trace_id": span_id * 2,
        "span_id": span_id,
        "local_root_span_id": span_id,
    }


def events() -> Iterator[Event]:
    """Two requests that launch for themselves, and a batch for both."""
    yield CaptureStart(START_NS, UNIX_OFFSET_NS, (("target", "python serve.py"),))
    yield target_event(PROCESS, "inference")
    yield Stacks((Stack(KEY, PROCESS, (MAIN, STEP)), Stack(OTHER_KEY, PROCESS, (MAIN, LOSS))))
    for span_id, count in LAUNCHES.items():
        key = OTHER_KEY if span_id == BATCH else KEY
        made = [call("cuLaunchKernel", key=key, **of_span(span_id)) for _ in range(count)]
        yield batch(*made)
    yield Watermark(START_NS + 100 * MS)


def span(span_id: bytes, name: str, kind: int, took_ms: int) -> dict[str, Any]:
    """A span in OTLP JSON."""
    return {
        "traceId": (span_id * 2).hex(),
        "spanId": span_id.hex(),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(UNIX_OFFSET_NS),
        "endTimeUnixNano": str(UNIX_OFFSET_NS + took_ms * MS),
    }


def traces() -> str:
    """Of these spans, and of a request for which the GPU did nothing."""
    step = span(BATCH, "gpu.batch", 1, 500)
    step["links"] = [
        {
            "traceId": (member * 2).hex(),
            "spanId": member.hex(),
            "attributes": [{"key": "gpu.batch.share", "value": {"doubleValue": share}}],
        }
        for member, share in SHARES.items()
    ]
    server = 2
    spans = [
        span(FAST, "POST /infer", server, 10),
        span(SLOW, "POST /infer", server, 30),
        span(bytes(7) + b"\4", "GET /health", server, 900),
        step,
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) + "\n"


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recording in the place of the bundled one; its traces are not written yet."""
    capture = write_capture(tmp_path / "service.ogfcap", events())
    monkeypatch.setattr(demo_module, "_bundled_capture", lambda: capture)
    return capture


def test_the_slowest_request_is_shown_with_its_share_of_batches(
    bundled: Path, tmp_path: Path
) -> None:
    """By name, time and id; two launches of its own and three quarters of the batch's eight."""
    bundled.with_suffix(".json").write_text(traces())
    result = run("demo", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    shown = result.stdout[result.stdout.index("The slowest") :].splitlines()
    assert shown[:5] == [
        "The slowest of 2 requests",
        f"POST /infer took 30.0 ms: span {SLOW.hex()}",
        "  gpu_launch 8, 6 of it estimated: its share of a batch",
        "          6  Trainer.step  train.py:90",
        "          2  Trainer.step  train.py:88",
    ]
    page, whole = (
        (tmp_path / "out" / name).read_text() for name in ("demo_span.html", "demo.html")
    )
    assert f"POST /infer {SLOW.hex()}" in page
    assert SLOW.hex() not in whole.partition("</title>")[0]


def test_without_traces_no_request_is_shown(bundled: Path, tmp_path: Path) -> None:
    """Nor one with traces that are of something else."""
    for text in (None, '{"resourceSpans": []}\n'):
        if text is not None:
            bundled.with_suffix(".json").write_text(text)
        result = run("demo", "-o", tmp_path / "out")
        assert result.exit_code == 0
        assert "slowest" not in result.stdout
        assert not (tmp_path / "out" / "demo_span.html").exists()


def test_a_missing_recording_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do about it."""
    monkeypatch.setattr(
        demo_module, "__file__", str(tmp_path / "otel_gpuflame" / "cli" / "demo.py")
    )
    with pytest.raises(CaptureFileError, match="run from a checkout"):
        demo_module._bundled_capture()


@pytest.mark.parametrize("output", ["/etc/passwd/out", "/proc/out"])
def test_a_directory_that_cannot_be_made_is_told(output: str) -> None:
    """Before anything is printed."""
    result = run("demo", "-o", output)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: cannot make the directory {output}: ")
