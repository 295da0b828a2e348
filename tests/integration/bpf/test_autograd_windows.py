# SPDX-License-Identifier: Apache-2.0
"""Backward passes that are seen in windows only: what began unseen is nobody's, and never somebody else's."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest

from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import Calls, Event
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.symbolize.stacks import PYTHON_NO_OWNER, PYTHON_TRUNCATED
from tests.fakes.steps import AGAIN, STAYS
from tests.integration.bpf.recording import LIMIT_S, Capture, Truth, app
from tests.integration.bpf.session import Running, running
from tests.integration.bpf.test_autograd import _LEAST_FRAMES, python_of

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

LAUNCHES: Final = 2_000
PROCESSES: Final = 2
STEPS_IN_WINDOW: Final = 3
STEP_NS: Final = 20_000_000
NEVER: Final = BudgetOptions(duty=1e-12)
"""Windows are opened by hand."""


def launches_in(events: list[Event]) -> int:
    """How many there are."""
    return sum(int((e.rows["kind"] == Kind.LAUNCH).sum()) for e in events if isinstance(e, Calls))


def work_under_windows(
    live: LiveCapture, targets: Sequence[Running]
) -> tuple[list[Event], list[Truth]]:
    """Open and close windows while programs work again and again; everything that was captured, and the truths."""
    events: list[Event] = [live.start_event()]
    deadline_s = time.monotonic() + LIMIT_S
    heard = [1] * len(targets)
    for target in targets:
        target.go()
    while launches_in(events) < LAUNCHES:
        assert time.monotonic() < deadline_s
        live.probing.open_window()
        for _ in range(STEPS_IN_WINDOW):
            events += live.step(STEP_NS)
        live.probing.close_window()
        events += live.step(STEP_NS)
        for number, target in enumerate(targets):
            if target.lines_said() > heard[number]:
                target.go(AGAIN)
                heard[number] += 1
    truths = [target.truth(number) for target, number in zip(targets, heard, strict=True)]
    for target in targets:
        target.go()
        assert target.finish() == 0, target.stderr.text()
    return events + live.finish(), truths


def judged(capture: Capture, truth: Truth) -> tuple[Counter[str], dict[str, Any]]:
    """Launches of one process by what is said of them, and those of which something wrong is."""
    pid = truth["pid"]
    names = {name.handle: name.name for name in capture.names if name.process.tgid == pid}
    launches = capture.kind(Kind.LAUNCH)
    found: Counter[str] = Counter()
    wrong = {}
    for row in launches[launches["tgid"] == pid]:
        name = names[int(row["object"])]
        chain, span = truth["kernels"][name]
        stack = capture.stacks[StackKey(*row["stack_hash"].tolist())]
        python, expected = python_of(stack), truth["chains"][chain]
        told = row["span_id"].tobytes().hex() if row["flags"] & CallFlag.HAS_SPAN else ""
        if PYTHON_TRUNCATED in stack.frames:
            expected = expected[-max(len(python), _LEAST_FRAMES) :]
        if (python, told) == (expected, span):
            found["right"] += 1
        elif (python, told) == ([], ""):
            found["marked" if PYTHON_NO_OWNER in stack.frames else "nobody's"] += 1
        elif python == expected[-len(python) :] and told in ("", span):
            # It is in a hook, and has begun no node since it is known.
            found["own frames"] += 1
        else:
            wrong[name] = (python, told, expected, span)
    return found, wrong


def test_what_began_unseen_is_nobodys(environment: dict[str, str]) -> None:
    """Passes beside and inside each other in two processes, in memory of former ones."""
    with contextlib.ExitStack() as stack:
        command, settings = app("autograd", "--hold"), {**environment, STAYS: "1"}
        targets = [stack.enter_context(running(command, settings)) for _ in range(PROCESSES)]
        pids = tuple(target.truth()["pid"] for target in targets)
        live = stack.enter_context(LiveCapture(LiveOptions(pids=pids, budget=NEVER)))
        live.attachments.probe_in_windows((ProbeGroup.BACKWARD,))
        events, truths = work_under_windows(live, targets)
    capture = Capture(events)
    found: Counter[str] = Counter()
    for truth in truths:
        assert truth["errors"] == []
        assert truth["distinct_tasks"] < truth["passes"] // 2
        told, wrong = judged(capture, truth)
        assert wrong == {}
        found += told
    print(found)
    # How many are marked depends on how long a pass lasts beside a window, on a loaded machine as long as that.
    assert capture.count("backward", "unreadable") > 0 or not found["marked"]
    assert found["right"] > 0
