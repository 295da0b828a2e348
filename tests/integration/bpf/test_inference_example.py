# SPDX-License-Identifier: Apache-2.0
"""The example service, recorded: each launch is on the span that it was made for, from capture to replayed span."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.profile.batches import split_batches
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.integration.bpf.recording import ROOT, Recording
from tests.integration.bpf.session import GrowingFile, attached, finished, running
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

INFERENCE = ROOT / "examples" / "inference"
REQUESTS = 64
LAYERS = 4


@dataclass(frozen=True, kw_only=True)
class Served:
    """A recording, and the spans that the service and its callers themselves wrote down."""

    recording: Recording
    traces: Path
    spans: list[dict[str, Any]]
    calls: list[dict[str, Any]]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Served:
    """64 requests at once, each with a parent in its caller, to a service that a recorder is attached to."""
    for module in ("fastapi", "uvicorn", "opentelemetry.instrumentation.fastapi"):
        require("bpf", find(module), f"{module} is missing: pip install --group examples")
    folder = tmp_path_factory.mktemp("inference")
    output, traces, calls = folder / "test.ogfcap", folder / "traces.json", folder / "calls.json"
    serve = ["serve.py", "--device", "driver", "--port", "0", "--traces", str(traces)]
    with running(command(*serve), environment) as service:
        service.wait_for(lambda: service.lines_said() > 0, "the service")
        port = service.stdout.text().strip().rpartition(":")[2]
        with attached(output, service.process.pid) as recorder:
            load = ["load.py", "--port", port, "--requests", str(REQUESTS), "--traces", str(calls)]
            called = subprocess.run(
                command(*load), env=environment, capture_output=True, text=True, check=False
            )
            assert called.returncode == 0, called.stderr
            GrowingFile(output).wait_for(recorder, time.monotonic_ns())
            service.process.send_signal(signal.SIGINT)
            assert service.finish() == 0, service.stderr.text()
            recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    return Served(recording=recording, traces=traces, spans=spans_of(traces), calls=spans_of(calls))


def find(module: str) -> bool:
    """Whether a module is there, in packages that are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def command(program: str, *arguments: str) -> list[str]:
    """Command line of one of the example's programs."""
    return [sys.executable, str(INFERENCE / program), *arguments]


def spans_of(traces: Path) -> list[dict[str, Any]]:
    """All spans of a file."""
    return [
        span
        for line in traces.read_text().splitlines()
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    ]


def test_each_launch_is_on_the_span_that_it_was_made_for(served: Served) -> None:
    """A request's own span has its prompt's, a step's span those of the step; none is left over."""
    rows = served.recording.capture.kind(Kind.LAUNCH)
    assert ((rows["flags"] & CallFlag.HAS_SPAN) != 0).all()
    seen = Counter(row["span_id"].tobytes().hex() for row in rows[["span_id"]])
    prompts = {span["spanId"]: LAYERS for span in served.named("prefill")}
    steps = {span["spanId"]: 2 * LAYERS for span in served.named("gpu.batch")}
    assert len(prompts) == REQUESTS
    assert seen == Counter(prompts | steps)
    roots = dict.fromkeys(span["parentSpanId"] for span in served.named("prefill"))
    servers = served.named("POST /infer")
    assert set(roots) == {server["spanId"] for server in servers}
    calls = {(call["traceId"], call["spanId"]) for call in served.calls}
    assert len(calls) == REQUESTS
    assert {(server["traceId"], server["parentSpanId"]) for server in servers} == calls


def test_steps_are_linked_to_the_requests_that_they_served(served: Served) -> None:
    """Shares sum to one in each step, and each request is in as many steps as it wanted tokens."""
    tokens: Counter[str] = Counter()
    for step in served.named("gpu.batch"):
        shares = [link["attributes"][0]["value"]["doubleValue"] for link in step["links"]]
        assert sum(shares) == pytest.approx(1)
        tokens.update(link["spanId"] for link in step["links"])
    assert sorted(tokens.values()) == sorted(1 + number % 20 for number in range(REQUESTS))
    assert set(tokens) == {span["spanId"] for span in served.named("POST /infer")}


def test_the_servers_span_shows_its_whole_request(served: Served) -> None:
    """By its id one gets what its children launched; by the child's, in `active` mode, the same."""
    child = served.named("prefill")[0]
    for span_id, mode in ((child["parentSpanId"], "local_root"), (child["spanId"], "active")):
        assert submissions(served.recording.path, span_id, mode) == LAYERS + 1


def test_steps_are_divided_among_the_requests_that_they_served(served: Served) -> None:
    """Each request has its share of the steps beside its own prompt; all parts together are all launches."""
    spans = read_traces(served.traces)
    members = batch_members(spans, by_local_root=True)
    assert len(members) == len(served.named("gpu.batch"))
    exact, estimated = split_batches(
        served.recording.replayed(SpanLink.LOCAL_ROOT).bundles, members
    )
    servers = {bytes.fromhex(span["spanId"]) for span in served.named("POST /infer")}
    of_prompts, of_steps = (launches_by_span(bundle) for bundle in (exact, estimated))
    assert of_prompts == dict.fromkeys(servers, LAYERS + 1)
    assert sum(of_steps.values()) == 2 * LAYERS * len(members)
    shares: Counter[bytes] = Counter()
    for of_step in members.values():
        shares.update({member.link.span_id: member.share for member in of_step})  # type: ignore[dict-item]
    assert of_steps.keys() <= shares.keys() == servers
    for server in servers:
        # Two stacks, each rounded once.
        assert of_steps[server] == pytest.approx(2 * LAYERS * shares[server], abs=2)


def launches_by_span(bundle: Bundle) -> Counter[bytes]:
    """Submissions by the id of the span that they are linked to."""
    (profile,) = (each for each in bundle.profiles if each.sample_type == GPU_LAUNCH)
    counts: Counter[bytes] = Counter()
    for link, value in zip(profile.link.tolist(), profile.value.tolist(), strict=True):
        counts[bundle.links[link].span_id if link >= 0 else b""] += value
    return counts


def submissions(capture: Path, span_id: str, mode: str) -> int:
    """As `replay --span-id` counts them: a prompt is copied, and goes through all layers."""
    flags = ["--span-id", span_id, "--span-link", mode, "--folded", "-"]
    command = ["replay", str(capture), *flags, "--sample-type", "gpu_launch"]
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines())
