# SPDX-License-Identifier: Apache-2.0
"""The agent with the GPU side: libraries in programs record in its windows, and sleep between them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpuflame.capture.cupti.lease import LEASE_NS
from otel_gpuflame.events.wire_gpu import LibraryCounter, LibraryState
from tests.fakes.build import build_fakes
from tests.integration.bpf.agent.harness import (
    Agent,
    agent,
    own_driver,
    totals,
    unique,
    wait_until,
)
from tests.integration.bpf.host_lock import agents_side_by_side
from tests.integration.bpf.session import running
from tests.integration.collector.sink import OtlpSink
from tests.integration.inject.region import Region
from tests.integration.inject.session import HERE, environment
from tests.integration.inject.test_recorded import Program, is_capturing

pytestmark = [pytest.mark.bpf, pytest.mark.inject, pytest.mark.usefixtures("beside_others")]

TARGET = [sys.executable, str(HERE / "target_app.py")]
KERNEL_NS = 20_000
WINDOWS = ("--gpu", "--window", "2")


@pytest.fixture
def beside_others(bpf_tier: None) -> Iterator[None]:
    """Agents of other test runs may be there."""
    with agents_side_by_side():
        yield


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """An OTLP backend."""
    with OtlpSink() as backend:
        yield backend


@pytest.fixture
def variables(library: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of programs with our library, on a driver that no other process maps."""
    directory = tmp_path / "driver"
    directory.mkdir()
    return {
        **environment(library, FAKE_CUDA_KERNEL_NS=str(KERNEL_NS)),
        **own_driver(build_fakes(), directory),
        "FAKE_CUDA_KERNEL_NS": str(KERNEL_NS),
    }


@contextmanager
def target(variables: dict[str, str], service: str) -> Iterator[Program]:
    """A program with our library. It must end well, and say nothing."""
    with running(TARGET, {**variables, "OTEL_SERVICE_NAME": service}) as started:
        program = Program(started)
        yield program
        program.end()
        assert started.finish() == 0
        assert started.stderr.text() == ""


def wait_for_window(pid: int, agent_: Agent) -> Region:
    """Until the library records for the agent."""
    agent_.running.wait_for(lambda: is_capturing(pid, leased=True), "a window")
    return Region(pid)


def test_with_full_duty_the_time_of_devices_is_exact(
    variables: dict[str, str], sink: OtlpSink
) -> None:
    """Of everything that was launched, and nothing else; waits and launches are as they are without it."""
    service = unique("exact")
    with target(variables, service) as program, agent(sink, *WINDOWS, "--duty", "100%") as agent_:
        region = wait_for_window(program.pid, agent_)
        written = region.counter(LibraryCounter.WRITTEN)
        program.do("launch_many", count=400)
        program.finish_work(written + 2 * 400)
        program.do("launch_many", kernel="later", count=100)
        program.finish_work(written + 2 * 500)
        agent_.stop()
    found = totals(sink)
    assert found[service, "gpu_time"] == 500 * KERNEL_NS
    assert found[service, "gpu_launch"] == 500
    assert found[service, "gpu_wait"] > 0
    assert not totals(sink, estimated=True)[service, "gpu_time"]


def test_between_windows_libraries_sleep(variables: dict[str, str], sink: OtlpSink) -> None:
    """They close by themselves when the window is over, and record nothing until the next one."""
    with target(variables, unique("dormant")) as program:
        with agent(sink, *WINDOWS, "--duty", "20%") as agent_:
            region = wait_for_window(program.pid, agent_)
            program.do("launch_many", count=10)
            asleep = lambda: region.state is LibraryState.DORMANT  # noqa: E731
            agent_.running.wait_for(asleep, "the end of the window")
            before = (region.counter(LibraryCounter.WRITTEN), int(region.field("generation")))
            is_over = region.lease_is_over()
            program.do("launch_many", count=200)
            after = (region.counter(LibraryCounter.WRITTEN), int(region.field("generation")))
            # The next window may have opened meanwhile, which would say nothing.
            assert (is_over and after == before) or after[1] != before[1]
            generation = before[1]
            agent_.running.wait_for(
                lambda: int(region.field("generation")) > generation, "the next window"
            )
            agent_.stop()
        assert region.lease_is_over()


def test_estimates_of_the_time_of_devices(variables: dict[str, str], sink: OtlpSink) -> None:
    """A program that launches all the time: what is seen in windows is scaled to all of it, as launches are."""
    service = unique("estimated")
    with target(variables, service) as program, agent(sink, *WINDOWS, "--duty", "50%") as agent_:
        wait_for_window(program.pid, agent_)

        def agrees() -> bool:
            """Of one window it need not: probes are attached before devices are recorded, and by how much differs."""
            program.do("launch", count=20)
            program.do("synchronize")
            found = totals(sink, estimated=True)
            time_ns, launches = found[service, "gpu_time"], found[service, "gpu_launch"]
            return launches > 0 and time_ns == pytest.approx(launches * KERNEL_NS, rel=0.2)

        wait_until(agrees, "an estimate of both that agrees with the length of a kernel")
        agent_.stop()
    exact = totals(sink)
    assert exact[service, "gpu_time"] == exact[service, "gpu_launch"] == 0
    assert exact[service, "gpu_wait"] > 0


def test_an_agent_that_is_killed_leaves_no_library_awake(
    variables: dict[str, str], sink: OtlpSink
) -> None:
    """Its lease runs out within three seconds, and the program goes on."""
    with target(variables, unique("killed")) as program:
        with agent(sink, *WINDOWS, "--duty", "100%") as agent_:
            region = wait_for_window(program.pid, agent_)
            agent_.send(signal.SIGKILL)
            agent_.running.process.wait()
            killed_ns = time.monotonic_ns()
        assert int(region.control["lease_until_ns"][0]) <= killed_ns + LEASE_NS
        wait_until(lambda: region.state is LibraryState.DORMANT, "the end of the lease")
        written = region.counter(LibraryCounter.WRITTEN)
        program.do("launch_many", count=100)
        program.do("synchronize")
        assert region.counter(LibraryCounter.WRITTEN) == written


def test_without_gpu_libraries_are_left_alone(variables: dict[str, str], sink: OtlpSink) -> None:
    """No lease is given, and launches are as they are."""
    service = unique("alone")
    with target(variables, service) as program:
        with agent(sink, *WINDOWS, "--duty", "100%", "--no-gpu") as agent_:
            agent_.wait_for_window(Path(variables["LD_LIBRARY_PATH"].split(":")[0], "libcuda.so.1"))
            program.do("launch_many", count=50)
            agent_.stop()
        region = Region(program.pid)
        assert int(region.control["wake"][0]) == 0
        assert region.state is LibraryState.DORMANT
    assert totals(sink)[service, "gpu_launch"] == 50
    assert totals(sink)[service, "gpu_time"] == 0
