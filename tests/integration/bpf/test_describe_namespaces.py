# SPDX-License-Identifier: Apache-2.0
"""Programs in other mount, pid, host name, cgroup and user namespaces are recorded like those of the host.

`unshare` makes what a container runtime would. Inside, the driver library lies in a file system that the host does not
see, under a path that means nothing outside.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.steps import STAYS
from tests.integration.bpf.agent.harness import FLUSH_S
from tests.integration.bpf.recording import (
    APPS,
    Recording,
    app,
    record_command,
    samples_of,
    total,
)
from tests.integration.bpf.session import attach_and_record, finished, keep_step, running
from tests.integration.collector.resolve import resolve_samples
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

INSIDE = "/opt"
"""Where the driver library lies in the namespaces; on the host there is something else, or nothing."""


@dataclass(frozen=True)
class Container:
    """A way to run the program: flags of unshare (none: on the host), and what names the service."""

    service: str
    flags: str
    environment: Mapping[str, str]

    def command(self, fakes: Path, program: str) -> list[str]:
        """Command line that runs `program` so."""
        inner = [sys.executable, "-u", program, "--hold"]
        if not self.flags:
            return inner
        setup = [
            f"mount -t tmpfs tmpfs {INSIDE}",
            f"cp {shlex.quote(str(fakes))}/*.so* {INSIDE}",
            # What the host has under the same path must play no part.
            f"mount -t tmpfs tmpfs {shlex.quote(str(fakes))}",
            "hostname inside",
            f"LD_LIBRARY_PATH={INSIDE} exec {shlex.join(inner)}",
        ]
        return ["unshare", *self.flags.split(), "sh", "-c", " && ".join(setup)]


CONTAINERS = (
    Container("spans.py", "", {}),
    Container("by name", "-mpfu --mount-proc", {"OTEL_SERVICE_NAME": "by name"}),
    Container(
        "by attributes",
        "-mpfuC -U --map-root-user --mount-proc",
        {"OTEL_RESOURCE_ATTRIBUTES": "service.name=by%20attributes,k8s.pod.name=pod-2"},
    ),
)


@pytest.fixture(scope="module")
def command(fakes: Path) -> list[str]:
    """Command line that runs all of them."""
    can_unshare = shutil.which("unshare") is not None and all(
        subprocess.run(
            ["unshare", *container.flags.split(), "mount", "-t", "tmpfs", "tmpfs", INSIDE],
            capture_output=True,
            check=False,
        ).returncode
        == 0
        for container in CONTAINERS
        if container.flags
    )
    require("bpf", can_unshare, "unshare must make mount, pid, uts, cgroup and user namespaces")
    programs = [
        {
            "name": container.service,
            "command": container.command(fakes, str(APPS / "spans.py")),
            "environment": container.environment,
        }
        for container in CONTAINERS
    ]
    return app("containers", json.dumps(programs))


@pytest.fixture(scope="module")
def recording(
    command: list[str], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    """All of them, recorded by the pid of their common parent."""
    output = tmp_path_factory.mktemp("namespaces") / "test.ogfcap"
    # What the commands that make namespaces do on a CPU would be services too.
    return attach_and_record(output, [*command, "--hold"], clean(environment), "--no-cpu")


def clean(environment: dict[str, str]) -> dict[str, str]:
    """Without names that the one who runs the tests has given."""
    return {name: value for name, value in environment.items() if not name.startswith("OTEL_")}


def bundle_of(recording: Recording, service: str) -> Bundle:
    """The profiles of one service."""
    (bundle,) = [b for b in recording.result.bundles if dict(b.resource)["service.name"] == service]
    return bundle


def truth_of(recording: Recording, service: str) -> dict[str, Any]:
    """What that service's program says that it did."""
    (truth,) = [truth for truth in recording.truths if truth.get("name") == service]
    return truth


def launches(truth: dict[str, Any]) -> int:
    """Launches in all."""
    parts = [*truth["spans"], truth["outside"], truth["unsampled"]]
    return sum(int(part["launches"]) for part in parts)


# Requests have threads of their own; the work outside of spans is done by the main thread.
THREAD = ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "Request.run")
MAIN = ("<module>", "run", "main")
CALL = ("Request.work", "FakeCuda.launch", "FakeCuda.call", "FakeCuda.result")


def probed(text: str) -> list[str]:
    """Libraries that the recorder says it has attached probes to."""
    return [line.rpartition(" ")[2] for line in text.splitlines() if " probes on " in line]


def is_inside(path: str) -> bool:
    """Whether it is the library of a namespace."""
    return path == f"{INSIDE}/libcuda.so.1"


services = pytest.mark.parametrize("service", [each.service for each in CONTAINERS])


def test_each_program_is_a_service_of_its_own(recording: Recording) -> None:
    """Three programs, three descriptions, three bundles of profiles; nothing else launched anything."""
    names = sorted(container.service for container in CONTAINERS)
    assert sorted(dict(b.resource)["service.name"] for b in recording.result.bundles) == names
    assert sorted(t["service.name"] for t in recording.capture.targets.values()) == names
    assert recording.capture.pending() == {}


@services
def test_nothing_is_lost_or_mixed(recording: Recording, service: str) -> None:
    """Every launch of a program is in its own profile, and no other's."""
    expected = launches(truth_of(recording, service))
    samples = samples_of([bundle_of(recording, service)], GPU_LAUNCH)
    assert total(samples) == expected
    tgids = recording.capture.kind(Kind.LAUNCH)["tgid"].tolist()
    assert tgids.count(truth_of(recording, service)["host_pid"]) == expected


@services
def test_a_process_has_the_hosts_pid(recording: Recording, service: str) -> None:
    """Inside it may believe to be 1; a pid that the host does not know would be of no use."""
    truth = truth_of(recording, service)
    resource = dict(bundle_of(recording, service).resource)
    assert resource["process.pid"] == truth["host_pid"]
    assert (truth["pid"] == 1) is (service != "spans.py")


@services
def test_the_host_is_the_host(recording: Recording, service: str) -> None:
    """The name in a namespace is a container's, not the machine's."""
    resource = dict(bundle_of(recording, service).resource)
    assert resource["host.name"] == socket.gethostname() != "inside"
    assert resource.get("k8s.pod.name") == ("pod-2" if service == "by attributes" else None)


@services
def test_python_frames_are_right(recording: Recording, service: str) -> None:
    """The interpreter is found through the target's own root, and its stacks are walked."""
    for sample in samples_of([bundle_of(recording, service)], GPU_LAUNCH):
        names = tuple(name for name, _ in sample.python())
        assert names in ((*THREAD, *CALL), (*MAIN, *CALL))
        assert all(line > 0 for _, line in sample.python())
        gpu = [frame for frame in sample.frames if frame.kind is FrameKind.GPU]
        assert [frame.name for frame in gpu] == ["saxpy"]


@services
def test_launches_link_to_the_spans_of_their_own_program(
    recording: Recording, service: str
) -> None:
    """The published span is found in the library that the target mapped, in its own namespace."""
    truth = truth_of(recording, service)
    assert truth["publishes"] is True
    expected: Counter[tuple[str, str]] = Counter()
    for span in truth["spans"]:
        expected[span["trace_id"], span["span_id"]] += span["launches"]
    seen: Counter[tuple[str, str]] = Counter()
    for sample in samples_of([bundle_of(recording, service)], GPU_LAUNCH):
        if sample.link is not None:
            seen[sample.link.trace_id.hex(), sample.link.span_id.hex()] += sample.value
    assert seen == expected


def test_the_library_is_probed_where_the_target_sees_it(recording: Recording, fakes: Path) -> None:
    """By the mapped inode: the host has no file of that name."""
    paths = probed(recording.stderr)
    assert sum(map(is_inside, paths)) == 2
    assert not os.path.exists(f"{INSIDE}/libcuda.so.1")
    assert f"{fakes}/libcuda.so.1" in paths


def test_programs_that_enter_namespaces_while_recorded_are_followed(
    command: list[str], environment: dict[str, str], output: Path
) -> None:
    """From the start of the parent on: fork, unshare and exec lead to the same three services."""
    recording_command = record_command(output, *command, "--hold", options=["--no-cpu"])
    with running(recording_command, {**clean(environment), STAYS: "1"}) as recorder:
        recorder.wait_for(
            lambda: sum(map(is_inside, probed(recorder.stderr.text()))) == 2,
            "the probes in both namespaces",
        )
        keep_step(recorder, recorder, output)
        recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    for container in CONTAINERS:
        truth = truth_of(recording, container.service)
        bundle = bundle_of(recording, truth["name"])
        assert total(samples_of([bundle], GPU_LAUNCH)) == launches(truth)
        assert dict(bundle.resource)["process.pid"] == truth["host_pid"]


@pytest.mark.usefixtures("side_by_side")
def test_the_agent_keeps_them_apart(
    command: list[str], environment: dict[str, str], fakes: Path
) -> None:
    """It finds all three by itself; what arrives is under each one's name, in the resource and on the samples."""
    agent = [sys.executable, "-m", "otel_gpuflame", "-v", "agent", "--no-self-telemetry"]
    agent += ["--shutdown", str(FLUSH_S)]
    with OtlpSink() as sink, running([*command, "--hold"], clean(environment)) as target:
        assert target.truth()["ready"] is True
        options = ["--endpoint", sink.http_endpoint, "--protocol", "http/protobuf", "--duty", "1"]
        with running([*agent, *options], clean(environment)) as exporter:
            exporter.wait_for(lambda: has_probes(exporter.stderr.text(), fakes), "all probes")
            target.go()
            assert target.finish() == 0, target.stderr.text()
            exporter.process.send_signal(signal.SIGTERM)
            assert exporter.finish() == 0, exporter.stderr.text()
    truths = [json.loads(line) for line in target.stdout.text().splitlines()]
    expected = {truth["host_pid"]: truth["name"] for truth in truths if "name" in truth}
    seen: dict[int, set[tuple[object, object]]] = {}
    for received in sink.received:
        for sample in resolve_samples(received.profiles):
            resource = {each.key: each.value for each in sample.resource}
            own = {each.key: each.value for each in sample.attributes}
            names = (resource["service.name"], own["service.name"])
            seen.setdefault(int(str(resource["process.pid"])), set()).add(names)
    # Whatever else runs on this host at the moment is the agent's business too, but not this test's.
    assert {pid: seen.get(pid) for pid in expected} == {
        pid: {(name, name)} for pid, name in expected.items()
    }
    assert len(set(expected.values())) == len(CONTAINERS)


def has_probes(text: str, fakes: Path) -> bool:
    """Whether the agent says that it probes the library of both namespaces and the host's."""
    paths = probed(text)
    on_host = any(path.endswith(f"{fakes}/libcuda.so.1") for path in paths)
    return on_host and sum(map(is_inside, paths)) == 2
