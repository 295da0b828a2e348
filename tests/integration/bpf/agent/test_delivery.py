# SPDX-License-Identifier: Apache-2.0
"""Whatever the receiver does, every profile is accounted for and no target notices."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from otel_gpuflame.export.delivery import DeliveryCounts
from otel_gpuflame.export.options import otlp_options
from otel_gpuflame.pipeline.agent import Agent, AgentControl, AgentOptions
from tests.fakes.build import app_command
from tests.integration.bpf.agent.harness import (
    FLUSH_S,
    assert_accounted,
    end_when,
    stays,
    unique,
    wait_until,
)
from tests.integration.bpf.recording import LIMIT_S
from tests.integration.bpf.session import running
from tests.integration.collector.sink import OtlpSink, Reply

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

SECOND = 1_000_000_000
LAUNCHES, PER_S = 3_000, 1_000


@contextlib.contextmanager
def agent_in_process(endpoint: str) -> Iterator[Agent]:
    """An agent in a thread of this process, whose counts can be read; it has been stopped in order at the end."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{endpoint}"}
    options = AgentOptions(
        destination=otlp_options(variables), window_ns=SECOND, duty=1.0, shutdown_s=FLUSH_S
    )
    control = AgentControl()
    subject = Agent(options, control)
    thread = threading.Thread(target=subject.run)
    thread.start()
    try:
        yield subject
    finally:
        control.stop.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        # The process that encodes ends in its own time, and would still be there in the next test.
        for child in multiprocessing.active_children():
            child.join(LIMIT_S)


class Gate:
    """A port that refuses connections until it is opened, and then leads to a sink."""

    def __init__(self, target: str) -> None:
        self._target = int(target.rpartition(":")[2])
        self._listener = socket.socket()
        # Bound and not listening: connections are refused, and nobody else can take the port.
        self._listener.bind(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        """Take connections from now on."""
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def run_target(driver: dict[str, str], service: str, subject: Agent) -> None:
    """A program that must end as if nobody watched, when its launches have been counted."""
    command = app_command("app_launch", LAUNCHES, "--rate", PER_S)
    with running(command, stays(driver, service)) as program:
        truth = end_when(lambda _: is_counted(service, subject), program)
    assert truth["launches"] == LAUNCHES


def is_counted(service: str, subject: Agent) -> bool:
    """Whether launches of a service have got into the agent's totals."""
    return any(each.service == service for each in subject.status.snapshot.services)


def wait_until_ready(subject: Agent) -> None:
    """Until it captures."""
    wait_until(lambda: subject.status.snapshot.is_capturing, "the agent to capture")


def assert_adds_up(counts: DeliveryCounts) -> None:
    """Every profile that was put is somewhere, and nothing waits after the end."""
    dropped = sum(count for _, count in counts.dropped)
    assert counts.put > 0
    assert counts.put == counts.exported + counts.rejected + dropped + counts.waiting
    assert counts.waiting == 0


def test_a_receiver_that_is_away_for_ten_seconds_gets_everything_later(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """Profiles of the outage are sent when it is over: none is dropped."""
    gate, services = Gate(sink.grpc_endpoint), [unique("away"), unique("back")]
    with agent_in_process(gate.endpoint) as subject:
        wait_until_ready(subject)
        warm_up(driver, subject)
        away_until = time.monotonic() + 10
        run_target(driver, services[0], subject)
        wait_until(lambda: time.monotonic() >= away_until, "the end of the outage")
        wait_until(lambda: subject.delivery.counts().retries > 0, "another attempt")
        assert subject.delivery.counts().exported == 0
        gate.open()
        run_target(driver, services[1], subject)
        wait_until(lambda: subject.delivery.counts().exported > 0, "the first answer")
    gate.close()
    counts = subject.delivery.counts()
    assert_adds_up(counts)
    assert counts.dropped == ()
    assert counts.rejected == 0
    assert_accounted(dict.fromkeys(services, LAUNCHES), sink)


def warm_up(driver: dict[str, str], subject: Agent) -> None:
    """Have the driver's probes attached: launches of a program that maps it are counted."""
    service = unique("first")
    with running(
        app_command("app_launch", 100_000, "--rate", 100), {**driver, "OTEL_SERVICE_NAME": service}
    ):
        wait_until(lambda: is_counted(service, subject), "launches of the first program")


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(delay_s=1.0), "exported"),
        (Reply(grpc_code=grpc.StatusCode.UNIMPLEMENTED, message="no profiles here"), "rejected"),
        (Reply(body=b"\xff\xfe this is no protobuf"), None),
    ],
    ids=["slow", "unimplemented", "garbage"],
)
def test_a_receiver_that_misbehaves_harms_nobody(
    reply: Reply, outcome: str | None, driver: dict[str, str], sink: OtlpSink
) -> None:
    """Answers late, refuses, or answers nonsense: the target ends as it should, and the counts add up."""
    sink.script(*[reply] * 500)
    with agent_in_process(sink.grpc_endpoint) as subject:
        wait_until_ready(subject)
        warm_up(driver, subject)
        run_target(driver, unique("unharmed"), subject)
    counts = subject.delivery.counts()
    assert_adds_up(counts)
    if outcome is not None:
        assert getattr(counts, outcome) > 0
    if outcome == "rejected":
        assert counts.exported == 0
