# SPDX-License-Identifier: Apache-2.0
"""How an agent ends, is switched, and is killed: targets never notice, and nothing stays behind."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.build import app_command
from tests.integration.bpf.agent.harness import (
    FULL,
    Agent,
    agent,
    assert_accounted,
    beacon,
    driver_of,
    end_when,
    existing,
    has_arrived,
    is_known,
    links_of,
    stays,
    totals,
    unique,
    wait_until,
)
from tests.integration.bpf.host_lock import agents_side_by_side, alone_on_the_host
from tests.integration.bpf.recording import LIMIT_S
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink, Reply

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

APPS = Path(__file__).parent / "apps"


@contextmanager
def launching(driver: dict[str, str], service: str, count: int) -> Iterator[Running]:
    """A program that launches `count` times, and stays."""
    command = app_command("app_launch", count)
    with running(command, stays(driver, service)) as program:
        yield program


@contextmanager
def launching_until_told(driver: dict[str, str], service: str) -> Iterator[Running]:
    """A program that launches without end."""
    command = [sys.executable, str(APPS / "launch_until_told.py")]
    with running(command, {**driver, "OTEL_SERVICE_NAME": service}) as program:
        yield program


@pytest.fixture
def beside_others(bpf_tier: None) -> Iterator[None]:
    """Agents of other test runs may be there."""
    with agents_side_by_side():
        yield


@pytest.fixture
def alone(bpf_tier: None) -> Iterator[None]:
    """They may not: the kill switch is theirs, too."""
    with alone_on_the_host():
        yield


def has_seen(sink: OtlpSink, service: str) -> bool:
    """Whether launches of a service have arrived."""
    return totals(sink)[service, "gpu_launch"] > 0


def assert_nothing_remains(before: Agent) -> None:
    """Kill an agent; its links and programs leave the kernel."""
    held = links_of(before.pid)
    links, programs = {link.id for link in held}, {link.program_id for link in held}
    assert len(links) >= 9
    assert links <= existing("link")
    before.send(signal.SIGKILL)
    before.running.process.wait()
    wait_until(lambda: not links & existing("link"), "links to go")
    wait_until(lambda: not programs & existing("prog"), "programs to go")


@pytest.mark.usefixtures("beside_others")
def test_sigkill_leaves_nothing_behind(driver: dict[str, str], sink: OtlpSink) -> None:
    """Links and programs go with the agent, the target ends as if nothing had been, a successor captures it."""
    service, after = unique("survivor"), unique("successor")
    with launching_until_told(driver, service) as program:
        with agent(sink, *FULL) as first:
            first.running.wait_for(lambda: has_seen(sink, service), "launches of the target")
            assert_nothing_remains(first)
        with agent(sink, *FULL) as second, beacon(driver, second):
            with launching(driver, after, 500) as other:
                end_when(lambda _: has_arrived(after, 500, sink), other)
            program.go()
            truth = program.truth()
            assert program.finish() == 0, program.stderr.text()
            second.stop()
    assert_accounted({after: 500}, sink)
    assert totals(sink)[service, "gpu_launch"] <= truth["launches"]


@pytest.mark.usefixtures("beside_others")
def test_switched_off_nothing_is_attached_and_on_it_captures_again(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """SIGUSR1 detaches everything and sends what was captured; SIGUSR2 begins anew; SIGTERM flushes."""
    names = [unique("on"), unique("off"), unique("on-again")]
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        for service, number in zip(names, (None, signal.SIGUSR1, signal.SIGUSR2), strict=True):
            if number is not None:
                subject.send(number)
            is_off = number is signal.SIGUSR1
            if is_off:
                wait_until(lambda: links_of(subject.pid) == [], "everything to be detached")
            else:
                subject.wait_for_window(driver_of(driver))
            with launching(driver, service, 1_000) as program:
                pid = program.process.pid
                if not is_off:
                    wait_until(lambda pid=pid: is_known(subject.pid, pid), "the agent to look")
                end_when(lambda _: True, program)
        subject.stop()
    assert_accounted({names[0]: 1_000, names[2]: 1_000}, sink)
    assert totals(sink)[names[1], "gpu_launch"] == 0


@pytest.mark.usefixtures("beside_others")
def test_sigterm_ends_within_its_deadline_while_the_receiver_hangs(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """The agent does not wait for a receiver that does not answer; what was not sent is said."""
    sink.script(*[Reply(delay_s=10 * LIMIT_S)] * 20)
    with agent(sink, *FULL, "--shutdown", "2") as subject, beacon(driver, subject):
        with launching(driver, unique("hanging"), 1_000) as program:
            end_when(lambda _: True, program)
        sink.wait_for(1)
        subject.stop()
        assert "profiles dropped: shutdown" in subject.log


@pytest.mark.usefixtures("alone")
def test_kill_switch_detaches_what_costs_too_much(driver: dict[str, str], sink: OtlpSink) -> None:
    """Waits without end above twice the budget: it says so, detaches, lives on, and SIGUSR2 begins anew."""
    command = app_command("app_wait", 0, 100_000_000)
    with running(command, {**driver, "OTEL_SERVICE_NAME": unique("hammer")}) as program:
        with agent(sink, "--window", "2", "--budget", "0.1%") as subject:
            subject.wait_for_log("kill switch: always-on probes cost a target")
            wait_until(lambda: links_of(subject.pid) == [], "everything to be detached")
            seen = len(sink.received)
            time.sleep(1)
            assert subject.running.process.poll() is None
            assert links_of(subject.pid) == []
            assert len(sink.received) >= seen
            subject.send(signal.SIGUSR2)
            wait_until(lambda: len(links_of(subject.pid)) >= 9, "probes to be attached again")
            subject.stop()
        assert program.process.poll() is None
