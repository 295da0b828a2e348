# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics and `top` beside programs whose numbers are known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.profile.ledger import EVENT_KINDS
from tests.fakes.build import app_command
from tests.fakes.nvml.build import build_nvml
from tests.fakes.steps import STAYS
from tests.integration.bpf.agent.harness import FLUSH_S
from tests.integration.bpf.recording import LIMIT_S, ROOT, Truth
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink, Received

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

LAUNCHES = 8_009
WAITS = 20
Labels = frozenset[tuple[str, Any]]


class Metrics:
    """One request: values by metric and attributes."""

    def __init__(self, received: Received) -> None:
        self.values: dict[str, dict[Labels, float]] = {}
        self.resources: list[dict[str, Any]] = []
        for resource in received.metrics.resource_metrics:
            self.resources.append(dict(_attributes(resource.resource.attributes)))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = metric.sum if metric.HasField("sum") else metric.gauge
                    self.values[metric.name] = {
                        frozenset(_attributes(p.attributes)): (
                            p.as_double if p.HasField("as_double") else p.as_int
                        )
                        for p in data.data_points
                    }

    def total(self, name: str, **labels: Any) -> float:
        """Sum of the points that have these attributes; `__` in a name stands for a dot."""
        wanted = {(key.replace("__", "."), value) for key, value in labels.items()}
        points = self.values.get(name, {}).items()
        return sum(value for attributes, value in points if wanted <= attributes)


def _attributes(pairs: Any) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        yield pair.key, getattr(pair.value, pair.value.WhichOneof("value"))


def metrics_of(sink: OtlpSink) -> list[Metrics]:
    """All requests with metrics, in order."""
    return [Metrics(received) for received in sink.received if received.signal == "metrics"]


def has_window(sink: OtlpSink) -> bool:
    """The first sampling window has opened, so that everything that is called from now on is seen."""
    name = "otel_gpuflame.window.switch.duration"
    return any(metrics.total(name) > 0 for metrics in metrics_of(sink))


def has_device_shares(sink: OtlpSink) -> bool:
    """Shares need two samples."""
    return any(metrics.total("gpu.sm.utilization") > 0 for metrics in metrics_of(sink))


def has_profiles(sink: OtlpSink, count: int) -> bool:
    """So many requests with profiles have arrived."""
    return sum(received.signal == "profiles" for received in sink.received) >= count


def agent_command(sink: OtlpSink, transport: str) -> list[str]:
    """An agent that captures everything, in short windows."""
    endpoint = {"grpc": sink.grpc_endpoint, "http/protobuf": sink.http_endpoint}[transport]
    return [
        *(sys.executable, "-m", "otel_gpuflame", "agent", "--endpoint", endpoint),
        *("--protocol", transport, "--window", "1", "--duty", "100%", "--shutdown", str(FLUSH_S)),
    ]


class Story:
    """Two programs that held until the agent captured, then ran to their end; the agent was then told to stop."""

    def __init__(
        self, sink: OtlpSink, transport: str, environment: dict[str, str], nvml: Path
    ) -> None:
        # Others may use a GPU library on this host too: these names are ours alone.
        self.launcher, self.waiter = (f"{name}-{transport}-{os.getpid()}" for name in ("a", "b"))
        launch = app_command("app_launch", LAUNCHES, "--rate", 2_000, "--hold")
        wait = app_command("app_wait", 50, WAITS, "--hold")
        settings = os.environ | {
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "LD_LIBRARY_PATH": str(nvml.parent),
            "FAKE_NVML_DEVICES": "2",
        }
        with (
            running(
                launch, environment | {"OTEL_SERVICE_NAME": self.launcher, STAYS: "1"}
            ) as launching,
            running(wait, environment | {"OTEL_SERVICE_NAME": self.waiter}) as waiting,
        ):
            assert launching.truth()["ready"]
            assert waiting.truth()["ready"]
            self.launch_pid = launching.process.pid
            with running(agent_command(sink, transport), settings) as agent:
                agent.wait_for(lambda: has_window(sink), "a sampling window")
                agent.wait_for(lambda: has_device_shares(sink), "counters of devices")
                launching.go()
                waiting.go()
                # Costs are measured now and then, and told of processes that live.
                launching.truth(1)
                agent.wait_for(lambda: self.cost(metrics_of(sink)) > 0, "the cost of capture")
                launching.go()
                assert (launching.finish(), waiting.finish()) == (0, 0)
                agent.process.send_signal(signal.SIGTERM)
                assert agent.finish() == 0, agent.stderr.text()
            self.log = agent.stderr.text()
            self.launch_truth = last_line(launching)
            self.wait_truth = last_line(waiting)
        self.received = sink.received
        self.metrics = metrics_of(sink)
        self.last = self.metrics[-1]

    def cost(self, metrics: list[Metrics]) -> float:
        """The largest share of the launching program's time that capture was ever said to cost."""
        labels = {"process__pid": self.launch_pid, "service__name": self.launcher}
        shares = [each.total("otel_gpuflame.overhead", **labels) for each in metrics]
        return max(shares, default=0)


def last_line(program: Running) -> Truth:
    """What a program says at its end."""
    truth: Truth = json.loads(program.stdout.text().splitlines()[-1])
    return truth


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def story(
    request: pytest.FixtureRequest,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    """One run over each protocol."""
    nvml = build_nvml(tmp_path_factory.mktemp("nvml"))
    with OtlpSink() as sink:
        yield Story(sink, request.param, environment, nvml)


def test_launches_are_those_that_the_program_made(story: Story) -> None:
    """Exact and estimated launches of the service add up to the truth; here all are exact."""
    exact = story.last.total("gpu.launches", service__name=story.launcher, estimated=False)
    scaled = story.last.total("gpu.launches", service__name=story.launcher, estimated=True)
    assert story.launch_truth["launches"] == LAUNCHES
    assert (exact, scaled) == (LAUNCHES, 0)


def test_waits_are_as_long_as_the_program_measured(story: Story) -> None:
    """Seconds that the program spent in its waits: between what the driver has measured inside, and it around them."""
    waited_s = story.last.total("gpu.wait.time", service__name=story.waiter)
    inside_s = story.wait_truth["inside_ns"] / 1e9
    measured_s = sum(story.wait_truth["duration_ns"]) / 1e9
    assert 0 < inside_s <= waited_s <= measured_s


def test_the_resource_is_the_agent(story: Story) -> None:
    """Programs are attributes of metrics, never their resource."""
    assert {resource["service.name"] for resource in story.last.resources} == {"otel_gpuflame"}


def test_profiles_are_counted_as_the_backend_counts_them(story: Story) -> None:
    """The last metrics come after the last profiles."""
    arrived = sum(
        len(scope.profiles)
        for received in story.received
        if received.signal == "profiles"
        for resource in received.profiles.resource_profiles
        for scope in resource.scope_profiles
    )
    assert story.last.total("otel_gpuflame.profiles", outcome="exported") == arrived > 0
    assert story.last.total("otel_gpuflame.profiles") == arrived
    assert story.last.total("otel_gpuflame.queue.samples") == 0


def test_every_event_is_accounted_for(story: Story) -> None:
    """For each kind: seen = profiled + lost + nested + left out + pending, at the end and at every moment.

    `stage="link"` says once more of what is profiled whether it belongs to a span.
    """
    for metrics in story.metrics:
        balance: Counter[str] = Counter()
        for labels, count in metrics.values.get("otel_gpuflame.events", {}).items():
            event = dict(labels)
            if event["kind"] in EVENT_KINDS and event["stage"] != "link":
                balance[event["kind"]] += int(count if event["outcome"] == "seen" else -count)
        for labels, count in metrics.values.get("otel_gpuflame.events.pending", {}).items():
            balance[dict(labels)["kind"]] -= int(count)
        assert {kind: rest for kind, rest in balance.items() if rest} == {}
    assert story.last.total("otel_gpuflame.events", kind="launch", outcome="seen") >= LAUNCHES


def test_totals_never_go_back(story: Story) -> None:
    """Counters grow from export to export."""
    for before, after in zip(story.metrics, story.metrics[1:], strict=False):
        for name in (
            "otel_gpuflame.events",
            "otel_gpuflame.profiles",
            "gpu.launches",
            "gpu.wait.time",
        ):
            for labels, value in before.values.get(name, {}).items():
                assert after.values[name][labels] >= value, (name, labels)


def test_devices_tell_how_busy_they_are(story: Story) -> None:
    """Each device of the host by its UUID, with what the (double of the) driver's library says."""
    for index in range(2):
        uuid = f"GPU-66616b65-2d63-7564-612d-6465762d00{index:02}"
        share = story.last.total("gpu.sm.utilization", hw__id=uuid)
        assert share == pytest.approx((2 + 10 * index) / 100)
        assert story.last.total("hw.gpu.memory.usage", hw__id=uuid) == 600 + index


def test_the_cost_of_capture_is_told_by_process(story: Story) -> None:
    """The overhead of the launching program was seen while it lived, with its name, as a share."""
    assert 0 < story.cost(story.metrics) < 1
    assert {metrics.total("otel_gpuflame.duty") for metrics in story.metrics} <= {0.0, 1.0}
    assert max(metrics.total("otel_gpuflame.targets") for metrics in story.metrics) >= 2


def test_nothing_is_captured_at_the_end(story: Story) -> None:
    """The last metrics say that capture is over, and nothing was worth a warning."""
    states = [metrics.total("otel_gpuflame.capturing") for metrics in story.metrics]
    assert max(states) == 1
    assert states[-1] == 0
    assert "self-telemetry" not in story.log


def test_a_backend_without_metrics_does_not_disturb_profiles(environment: dict[str, str]) -> None:
    """With metrics going nowhere, profiles arrive and there is one message."""
    name = f"c-{os.getpid()}"
    settings = os.environ | {
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "100",
    }
    wait = app_command("app_wait", 20, 1_000_000, "--hold")
    with OtlpSink() as sink, running(wait, environment | {"OTEL_SERVICE_NAME": name}) as waiting:
        assert waiting.truth()["ready"]
        waiting.go()
        with running(agent_command(sink, "grpc"), settings) as agent:
            agent.wait_for(lambda: has_profiles(sink, 2), "profiles")
            agent.process.send_signal(signal.SIGTERM)
            assert agent.finish() == 0
            assert agent.stderr.text().count("metrics do not reach") == 1
    assert {received.signal for received in sink.received} == {"profiles"}


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `top` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "top", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def busy(environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """A program that launches and waits all the time; its service and pid."""
    name = f"busy-{os.getpid()}"
    command = app_command("app_wait", 5, 1_000_000, "--hold")
    with running(command, environment | {"OTEL_SERVICE_NAME": name}) as program:
        assert program.truth()["ready"]
        program.go()
        yield name, program.process.pid


def test_top_shows_the_program_once_as_json(busy: tuple[str, int]) -> None:
    """One line of JSON with the service, its waits, its launches, and the line that waits."""
    result = top("--once", "--json", "--interval", "1", "--duty", "100%")
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    view = json.loads(line)
    (process,) = [p for p in view["processes"] if p["pid"] == busy[1]]
    assert process["service"] == busy[0]
    # A wait counts where it ends: a part of it may lie before the interval. A nanosecond for a second would not pass.
    assert 0 < process["gpu_wait_s_per_s"] < LIMIT_S
    assert process["launches_per_s"] > 0
    assert not process["is_estimated"]
    assert process["top_wait"]["file"].endswith("cuda_driver.py")
    assert (view["interval_s"], view["duty"]) == (1.0, 1.0)
    assert view["targets"] >= 1


def test_top_marks_estimates(busy: tuple[str, int]) -> None:
    """Within a budget launches are scaled from a window, and `--once` waits for the first of them."""
    result = top("--once", "--json", "--interval", "1", "--duty", "50%")
    assert result.returncode == 0, result.stderr
    view = json.loads(result.stdout)
    (process,) = [p for p in view["processes"] if p["pid"] == busy[1]]
    assert process["launches_per_s"] is not None
    assert process["is_estimated"] or process["launches_per_s"] == 0
    assert process["gpu_wait_s_per_s"] > 0


def test_top_prints_a_table_where_there_is_no_terminal(busy: tuple[str, int]) -> None:
    """Readable when redirected: a header, a row for the program, no control characters."""
    result = top("--once", "--interval", "1", "--duty", "100%")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    rows = [line.split()[:2] for line in result.stdout.splitlines()]
    assert [busy[0], str(busy[1])] in rows, result.stdout


def test_top_ends_orderly_when_told(busy: tuple[str, int]) -> None:
    """SIGTERM and SIGINT end it with 0, after at least one view."""
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "otel_gpuflame", "top", "--json", "--interval", "0.5"]
        with running(command) as program:
            program.wait_for(lambda: "\n" in program.stdout.text(), "a view")
            program.process.send_signal(number)
            assert program.finish() == 0, program.stderr.text()
