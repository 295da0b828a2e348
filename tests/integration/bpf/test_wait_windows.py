# SPDX-License-Identifier: Apache-2.0
"""Waits that are seen in windows: one whose return nobody saw does not hide what its thread does later."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import pytest

from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.events.records import Event
from otel_gpuflame.events.wire import Kind
from tests.fakes.steps import STAYS
from tests.integration.bpf.apps.launches_around_wait import AFTER, INSIDE
from tests.integration.bpf.recording import Capture, app
from tests.integration.bpf.session import Running, running, wait_until_inside

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

NEVER = BudgetOptions(duty=1e-12)
"""Windows are opened by hand."""


@contextlib.contextmanager
def captured(environment: dict[str, str]) -> Iterator[tuple[Running, LiveCapture]]:
    """The program, before its first call, and a capture of it that has windows."""
    command = app("launches_around_wait", "--hold")
    with running(command, {**environment, STAYS: "1"}) as target:
        options = LiveOptions(pids=(target.truth()["pid"],), budget=NEVER, unwind=False)
        with LiveCapture(options) as live:
            yield target, live


def launch_inside(target: Running) -> None:
    """Have the program launch while it waits."""
    said = target.lines_said()
    target.process.send_signal(signal.SIGUSR1)
    assert target.truth(said) == {"launched": "inside"}


def end_wait(target: Running) -> None:
    """Let the program's wait end."""
    said = target.lines_said()
    target.go()
    assert target.truth(said) == {"waited": True}


def rest_of(target: Running, live: LiveCapture) -> Capture:
    """Let the program do the rest; what was captured."""
    said = target.lines_said()
    events: list[Event] = [live.start_event()]
    target.go()
    target.truth(said)
    events += live.step(0)
    target.go()
    assert target.finish() == 0, target.stderr.text()
    return Capture(events + live.finish())


def test_a_wait_that_outlives_its_window_hides_no_later_call(environment: dict[str, str]) -> None:
    """It returns between two windows; the thread's next calls come from deeper on its stack."""
    with captured(environment) as (target, live):
        live.attachments.probe_in_windows((ProbeGroup.WAIT,))
        live.probing.open_window()
        target.go()
        wait_until_inside(target)
        live.probing.close_window()
        end_wait(target)
        live.probing.open_window()
        capture = rest_of(target, live)
    assert capture.count("launch", "nested") == 0
    assert len(capture.kind(Kind.LAUNCH)) == 1 + AFTER
    assert capture.count("wait", "no_return") == 1
    assert capture.pending() == {}


def test_a_wait_that_outlives_its_window_has_no_end_in_a_later_one(
    environment: dict[str, str],
) -> None:
    """What returns there in the same place may be another call."""
    with captured(environment) as (target, live):
        live.attachments.probe_in_windows((ProbeGroup.WAIT,))
        live.probing.open_window()
        target.go()
        wait_until_inside(target)
        live.probing.close_window()
        live.probing.open_window()
        end_wait(target)
        capture = rest_of(target, live)
    assert len(capture.kind(Kind.WAIT)) == 0
    assert capture.count("wait", "no_return") == 1
    assert len(capture.kind(Kind.LAUNCH)) == 1 + AFTER
    assert capture.pending() == {}


def always_on(live: LiveCapture) -> None:
    """Waits were never windowed."""


def always_on_again(live: LiveCapture) -> None:
    """They were before."""
    live.attachments.probe_in_windows((ProbeGroup.WAIT,))
    live.probing.open_window()
    live.probing.close_window()
    live.attachments.probe_always((ProbeGroup.WAIT,))


@pytest.mark.parametrize("arrange", [always_on, always_on_again])
def test_calls_inside_of_a_wait_that_is_seen_to_return_are_its_own(
    arrange: Callable[[LiveCapture], None], environment: dict[str, str]
) -> None:
    """However many windows open and close around it."""
    with captured(environment) as (target, live):
        arrange(live)
        live.probing.open_window()
        target.go()
        wait_until_inside(target)
        live.probing.close_window()
        live.probing.open_window()
        launch_inside(target)
        end_wait(target)
        capture = rest_of(target, live)
    assert capture.count("launch", "nested") == INSIDE
    assert len(capture.kind(Kind.LAUNCH)) == 1 + AFTER
    assert len(capture.kind(Kind.WAIT)) == 1
    assert capture.count("wait", "no_return") == 0
    assert capture.pending() == {}


def test_calls_inside_of_a_windowed_wait_are_its_own(environment: dict[str, str]) -> None:
    """In the window in which it began, and only there: later nobody knows whether it still lasts."""
    with captured(environment) as (target, live):
        live.attachments.probe_in_windows((ProbeGroup.WAIT,))
        live.probing.open_window()
        target.go()
        wait_until_inside(target)
        launch_inside(target)
        live.probing.close_window()
        live.probing.open_window()
        launch_inside(target)
        end_wait(target)
        capture = rest_of(target, live)
    assert capture.count("launch", "nested") == INSIDE
    assert len(capture.kind(Kind.LAUNCH)) == 1 + INSIDE + AFTER
    assert capture.count("wait", "no_return") == 1
    assert capture.pending() == {}
