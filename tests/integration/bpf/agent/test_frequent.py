# SPDX-License-Identifier: Apache-2.0
"""Programs that wait, launch graphs or begin backward passes so often that probing each would take the budget."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from otel_gpuflame.symbolize.stacks import PYTHON_NO_OWNER
from tests.integration.bpf.agent.harness import (
    ESTIMATED,
    Agent,
    agent,
    beacon,
    driver_of,
    profiles_in,
    resource_of,
    totals,
    unique,
    wait_until,
)
from tests.integration.bpf.session import running
from tests.integration.collector.resolve import ResolvedProfile, ResolvedSample
from tests.integration.collector.sink import OtlpSink

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

APPS = Path(__file__).parent / "apps"
STRATA = 2


def profiles_of(
    service: str, sink: OtlpSink, sample_type: str, *, estimated: bool
) -> list[ResolvedProfile]:
    """Its profiles of a sort."""
    return [
        profile
        for profile in profiles_in(sink)
        if profile.sample_type.type == sample_type
        and resource_of(profile)["service.name"] == service
        and (profile.scope.name == ESTIMATED) is estimated
    ]


def waits_of(service: str, sink: OtlpSink, *, estimated: bool) -> list[ResolvedProfile]:
    """Its profiles of waits."""
    return profiles_of(service, sink, "gpu_wait", estimated=estimated)


def run_until_estimated(
    script: str,
    subject: Agent,
    driver: dict[str, str],
    log: str,
    estimates: Callable[[], Sequence[ResolvedProfile]],
) -> dict[str, Any]:
    """Run a program until the agent has said `log` and estimated some strata since; what the program says of itself.

    The beacon shows when the agent is ready.
    """
    with beacon(driver), running([sys.executable, str(APPS / script)], driver) as program:
        subject.wait_for_log(log)
        library = driver_of(driver)
        wait_until(lambda: subject.entry_links(library) == 4, "their probes to be gone")
        wait_until(
            lambda: len(estimates()) >= STRATA,
            f"estimates of {STRATA} strata",
            limit_s=180,
            pause_s=0.5,
        )
        program.go()
        truth: dict[str, Any] = program.truth()
        assert program.finish() == 0, program.stderr.text()
    return truth


def launches_beside(
    service: str, sink: OtlpSink, estimates: list[ResolvedProfile]
) -> list[ResolvedSample]:
    """Estimated launches of the same strata: of the same windows, and so scaled alike, wherever these lay.

    What is estimated in sum scatters widely: a window that the edge of its stratum cuts covers less of it.
    """
    starts_ns = {each.start_unix_ns for each in estimates}
    profiles = profiles_of(service, sink, "gpu_launch", estimated=True)
    return [s for each in profiles if each.start_unix_ns in starts_ns for s in each.samples]


def test_frequent_waits_are_captured_in_windows_and_scaled(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """Once that is known, none is exact and all are estimated: for each launch the time that the program measures.

    Its lines are told as before.
    """
    service = unique("waits-often")
    environment = {**driver, "OTEL_SERVICE_NAME": service, "FAKE_CUDA_KERNEL_NS": "300000"}
    with agent(sink, "--window", "1", "--budget", "1.5%") as subject:
        truth = run_until_estimated(
            "wait_often.py",
            subject,
            environment,
            "too many calls that may wait: probed in windows",
            lambda: waits_of(service, sink, estimated=True),
        )
        subject.stop()
    exact = totals(sink)[service, "gpu_wait"]
    estimates = waits_of(service, sink, estimated=True)
    waited_ns = sum(sample.value for each in estimates for sample in each.samples)
    launches = sum(sample.value for sample in launches_beside(service, sink, estimates))
    assert waited_ns / launches == pytest.approx(truth["waited_ns"] / truth["waits"], rel=0.35)
    assert 0 < exact < waited_ns
    lines = {name for each in estimates for sample in each.samples for name in sample.stack}
    assert {"main", "cuCtxSynchronize"} <= lines


def launches_of(samples: Iterable[ResolvedSample], function: str) -> int:
    """How many were made by a function of the driver."""
    return sum(sample.value for sample in samples if function in sample.stack)


def with_graphs(service: str, sink: OtlpSink) -> list[ResolvedProfile]:
    """Estimated profiles that have launches of graphs."""
    profiles = profiles_of(service, sink, "gpu_launch", estimated=True)
    return [each for each in profiles if launches_of(each.samples, "cuGraphLaunch")]


def test_frequent_launches_of_graphs_are_captured_in_windows_and_scaled(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """A model that is cut into 40 graphs: always probed these took the budget, so that there were no windows at all.

    For each kernel there are as many launches of graphs as the program makes.
    """
    service = unique("graphs-often")
    with agent(sink, "--window", "1", "--budget", "1.5%") as subject:
        truth = run_until_estimated(
            "graphs_often.py",
            subject,
            {**driver, "OTEL_SERVICE_NAME": service},
            "too many launches of graphs: probed in windows",
            lambda: with_graphs(service, sink),
        )
        subject.stop()
    assert "kill switch" not in subject.log
    estimates = launches_beside(service, sink, with_graphs(service, sink))
    graphs, kernels = (launches_of(estimates, f) for f in ("cuGraphLaunch", "cuLaunchKernel"))
    assert graphs / kernels == pytest.approx(truth["graphs"], rel=0.35)
    exact_profiles = profiles_of(service, sink, "gpu_launch", estimated=False)
    exact = sum(launches_of(each.samples, "cuGraphLaunch") for each in exact_profiles)
    assert 0 < exact < truth["steps"] * truth["graphs"]
    lines = {name for sample in estimates for name in sample.stack}
    assert {"main", "step"} <= lines


PASSES_OF: Final = {"one": {"one"}, "two": {"two"}, "inner": {"two", "inner"}}
"""By kernel: the functions that a launch of it is under."""


def judged(sink: OtlpSink) -> tuple[Counter[str], set[tuple[str, ...]]]:
    """Launches of backward passes by what is said of them, and the stacks that are wrong."""
    found: Counter[str] = Counter()
    wrong = set()
    for profile in profiles_in(sink):
        if profile.sample_type.type != "gpu_launch":
            continue
        for sample in profile.samples:
            kernel = {name.removeprefix("kernel_") for name in sample.stack if "kernel_" in name}
            functions = [name.rpartition(".")[2] for name in sample.stack]
            passes = {name.removeprefix("pass_") for name in functions if name.startswith("pass_")}
            if not kernel:
                continue
            if passes == PASSES_OF[kernel.pop()]:
                found["right"] += sample.value
            elif not passes:
                found["marked" if PYTHON_NO_OWNER.name in sample.stack else "nobody's"] += (
                    sample.value
                )
            else:
                wrong.add(sample.stack)
    return found, wrong


def test_frequent_backward_passes_are_seen_in_windows(
    fakes: Path, driver: dict[str, str], sink: OtlpSink
) -> None:
    """Their probes are gone between windows, and what windows show is right, of two programs with the same memory."""
    torch = Path(driver["LD_LIBRARY_PATH"].split(":")[0], "libtorch_cpu.so")
    shutil.copy(fakes / torch.name, torch)
    services = [unique("backward-often"), unique("backward-too")]
    command = [sys.executable, str(APPS / "backward_often.py")]
    with contextlib.ExitStack() as stack:
        subject = stack.enter_context(agent(sink, "--window", "1", "--no-cpu"))
        stack.enter_context(beacon(driver, subject))
        programs = [
            stack.enter_context(running(command, {**driver, "OTEL_SERVICE_NAME": service}))
            for service in services
        ]
        subject.wait_for_log("too many backward passes: probed in windows")
        wait_until(lambda: subject.entry_links(str(torch)) == 0, "the probes to be gone")
        wait_until(lambda: subject.entry_links(str(torch)) == 2, "a window")
        wait_until(lambda: subject.entry_links(str(torch)) == 0, "the window to close")
        before = {
            service: totals(sink, estimated=True)[service, "gpu_launch"] for service in services
        }
        wait_until(
            lambda: all(
                totals(sink, estimated=True)[service, "gpu_launch"] > before[service]
                for service in services
            ),
            "estimates of both",
            limit_s=180,
            pause_s=0.5,
        )
        for program in programs:
            program.go()
            assert program.finish() == 0, program.stderr.text()
        subject.stop()
    found, wrong = judged(sink)
    assert wrong == set()
    # How many are not told depends on how much of a window a pass lasts.
    assert found["right"] > 0
