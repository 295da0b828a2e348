# SPDX-License-Identifier: Apache-2.0
"""One agent beside programs of three kinds, on the host and in namespaces, started before it and after."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.build import FAKES, app_command
from tests.integration.bpf.agent.harness import (
    CUDA_WITH_WINDOW,
    FULL,
    OPENCL_WITH_WINDOW,
    Agent,
    agent,
    assert_accounted,
    beacon,
    driver_of,
    end_when,
    has_arrived,
    is_known,
    profiles_in,
    resource_of,
    stays,
    totals,
    unique,
    wait_until,
)
from tests.integration.bpf.recording import APPS, app
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

WAITS, WAIT_MS = 25, 20
AGENT_APPS = Path(__file__).parent / "apps"


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A target: its service, command line, and the driver library whose probes it waits for."""

    service: str
    command: list[str]
    library: str
    links: int = CUDA_WITH_WINDOW


def in_namespaces(driver: Mapping[str, str], inside: str, command: list[str]) -> list[str]:
    """Run it in mount and pid namespaces of its own, on its own copy of the driver under another path."""
    library_directory = driver["LD_LIBRARY_PATH"].split(":")[0]
    setup = [
        f"mount -t tmpfs tmpfs {inside}",
        f"cp {shlex.quote(library_directory)}/*.so* {inside}",
        f"LD_LIBRARY_PATH={inside} exec {shlex.join(command)}",
    ]
    return ["unshare", "-mpf", "--mount-proc", "sh", "-c", " && ".join(setup)]


def loader_of_pyopencl() -> str:
    """The OpenCL loader that this Python maps for pyopencl."""
    import pyopencl  # noqa: F401, PLC0415 - after the check that it is there

    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "/libOpenCL" in line)


def programs(driver: Mapping[str, str], count: int) -> list[Program]:
    """Launching, waiting and OpenCL programs that hold before their first call; the first two in namespaces."""
    own = driver_of(driver)
    launch = app_command("app_launch", count, "--hold")
    wait = app_command("app_wait", WAIT_MS, WAITS, "--hold")
    return [
        Program(unique("launch"), launch, own),
        Program(unique("wait"), wait, own),
        Program(
            unique("opencl"),
            app_command("app_opencl", count, "--hold"),
            loader_of_pyopencl(),
            OPENCL_WITH_WINDOW,
        ),
    ]


def contained(driver: Mapping[str, str], count: int) -> list[Program]:
    """Two in namespaces."""
    launch = app_command("app_launch", count, "--hold")
    wait = app_command("app_wait", WAIT_MS, WAITS, "--hold")
    return [
        Program(unique("ns-launch"), in_namespaces(driver, "/opt", launch), "/opt/libcuda.so.1"),
        Program(unique("ns-wait"), in_namespaces(driver, "/srv", wait), "/srv/libcuda.so.1"),
    ]


def launches_of(truth: Mapping[str, Any]) -> int:
    """Submissions that a program says it made."""
    for name in ("launches", "enqueues", "waits"):
        if name in truth:
            return int(truth[name])
    raise AssertionError(truth)


def ended(program: Running, service: str, sink: OtlpSink) -> dict[str, Any]:
    """Let a program end when its launches have arrived; what it said."""
    return end_when(lambda truth: has_arrived(service, launches_of(truth), sink), program, said=1)


@pytest.fixture
def available() -> None:
    """PoCL and namespaces."""
    command = ["unshare", "-mpf", "--mount-proc", "true"]
    can_unshare = (
        shutil.which("unshare") is not None and not subprocess.run(command, check=False).returncode
    )
    require("bpf", can_unshare, "unshare must make mount and pid namespaces")
    require("bpf", importlib.util.find_spec("pyopencl") is not None, "pip install pyopencl")
    has_driver = any(Path("/etc/OpenCL/vendors").glob("pocl*.icd"))
    require("bpf", has_driver, "PoCL is missing: apt-get install pocl-opencl-icd")


def start(stack: contextlib.ExitStack, program: Program, driver: Mapping[str, str]) -> Running:
    """Start a program and wait until it has mapped its driver."""
    started = stack.enter_context(running(program.command, stays(driver, program.service)))
    assert started.truth()["ready"] is True
    return started


def assert_waited(truths: Mapping[str, dict[str, Any]], sink: OtlpSink) -> None:
    """Waits are as long as the driver has measured inside of them at least, and no longer than the program around."""
    seen = totals(sink)
    for service, truth in truths.items():
        if "duration_ns" in truth:
            waited_ns = seen[service, "gpu_wait"]
            assert 0 < truth["inside_ns"] <= waited_ns <= sum(truth["duration_ns"])


@pytest.mark.usefixtures("available")
def test_programs_before_and_after_the_agent_are_told_apart(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """Eleven programs, on the host and in namespaces: each has its launches and waits, all of them, and no other's."""
    before = programs(driver, 211) + contained(driver, 307)
    after = programs(driver, 401) + contained(driver, 503)
    already = unique("already")
    with contextlib.ExitStack() as stack:
        held = {p.service: start(stack, p, driver) for p in before}
        command = [sys.executable, str(AGENT_APPS / "launch_until_told.py")]
        busy = stack.enter_context(running(command, {**driver, "OTEL_SERVICE_NAME": already}))
        subject = stack.enter_context(agent(sink, *FULL))
        ready(subject, before)
        held |= {p.service: start(stack, p, driver) for p in after}
        ready(subject, before + after)
        for each in held.values():
            each.go()
        truths = {service: ended(program, service, sink) for service, program in held.items()}
        wait_until(lambda: totals(sink)[already, "gpu_launch"] > 0, "those of the first program")
        busy.go()
        in_all = launches_of(busy.truth())
        assert busy.finish() == 0, busy.stderr.text()
        subject.stop()
    assert_accounted({s: launches_of(truth) for s, truth in truths.items()}, sink)
    assert_waited(truths, sink)
    assert totals(sink)[already, "gpu_launch"] <= in_all
    assert_one_process_each(truths.keys(), sink)


def ready(subject: Agent, programs_: list[Program]) -> None:
    """Until every driver library has an open window; two programs may have their own under the same path."""
    wanted: Counter[str] = Counter()
    for program in programs_:
        if program.library.startswith(("/opt/", "/srv/")):
            wanted[program.library] += program.links
        else:
            wanted[program.library] = program.links
    for path, links in wanted.items():
        subject.wait_for_window(path, links)


def assert_one_process_each(services: Any, sink: OtlpSink) -> None:
    """No service has profiles of two processes: nothing was mixed."""
    pids: dict[str, set[object]] = {}
    for profile in profiles_in(sink):
        resource = resource_of(profile)
        pids.setdefault(str(resource["service.name"]), set()).add(resource.get("process.pid"))
    assert {service: len(pids[service]) for service in services} == dict.fromkeys(services, 1)


def copy_of(program: Path, directory: Path) -> Path:
    """The program under a name that no other process of the host has."""
    copy = directory / f"{unique(program.stem)}.py"
    shutil.copy(program, copy)
    return copy


def test_what_a_process_was_before_exec_stays_what_it_was(
    driver: dict[str, str], sink: OtlpSink, tmp_path: Path
) -> None:
    """Launches before and after exec, within one window, belong to two services of the same pid."""
    first, second = (
        copy_of(APPS / "exec_chain.py", tmp_path),
        copy_of(FAKES / "app_wait.py", tmp_path),
    )
    command = [sys.executable, str(first), "5", "10", str(second), "10", "2"]
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        with running(command, stays(driver)) as program:
            # Replaced before the agent has looked at it, it would go by the name of the next.
            for number in range(2):
                pid = program.truth(number)["pid"]
                wait_until(lambda pid=pid: is_known(subject.pid, pid), "the agent to look")
                program.go()
            assert program.finish() == 0, program.stderr.text()
        subject.stop()
    assert_accounted({first.name: 5, second.name: 2}, sink)
    of_these = [
        (name, resource["process.pid"])
        for resource in map(resource_of, profiles_in(sink))
        if (name := resource["service.name"]) in (first.name, second.name)
    ]
    assert len(set(of_these)) == 2
    assert len({pid for _, pid in of_these}) == 1


def test_forked_and_started_children_are_captured(driver: dict[str, str], sink: OtlpSink) -> None:
    """Each process has its own launches; a forked child, however short its life, is of its parent's service."""
    service = unique("family")
    command = app_command("app_fork", 23, 7, 11)
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        with running(command, stays(driver, service)) as program:
            truth = end_when(lambda truth: is_known(subject.pid, truth["pid"]), program)
        subject.stop()
    parent, forked, started = (each["pid"] for each in truth["processes"])
    seen: Counter[int] = Counter()
    services: dict[int, set[object]] = {}
    for profile in profiles_in(sink):
        resource = resource_of(profile)
        pid = int(str(resource.get("process.pid", 0)))
        if profile.sample_type.type == "gpu_launch" and pid in (parent, forked, started):
            seen[pid] += sum(sample.value for sample in profile.samples)
            services.setdefault(pid, set()).add(resource["service.name"])
    assert seen == {each["pid"]: each["launches"] for each in truth["processes"]}
    assert services[parent] == services[forked] == {service}
    # It ends at once: when it was gone before it could be described, it has the name of its command.
    command_name = os.path.basename(sys.executable)[:15]
    assert services[started] in ({service}, {command_name})


def test_a_program_of_this_folder_without_a_gpu_is_no_target(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """A process that maps no GPU library has no profile."""
    service = unique("bystander")
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        with running(app("busy", "--help"), {**driver, "OTEL_SERVICE_NAME": service}) as program:
            program.finish()
        subject.stop()
    assert service not in {resource_of(profile)["service.name"] for profile in profiles_in(sink)}
