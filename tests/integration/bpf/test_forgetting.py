# SPDX-License-Identifier: Apache-2.0
"""Nothing of a process that has ended stays in the live source: an agent meets processes for months."""

from __future__ import annotations

import time

import pytest

from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.events.records import ProcessesEnded
from tests.fakes.build import app_command
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import LIMIT_S
from tests.integration.bpf.session import running

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

_ROUND_NS = 20_000_000


def remembered(live: LiveCapture) -> list[int]:
    """How much is remembered of stacks, of pairs of words, and of descriptions."""
    stacks, who = live._stacks, live._descriptions
    tables = (stacks._known, stacks._seen, who._seen, who._given_out)
    return [len(table) for table in tables]


def test_an_ended_process_leaves_nothing_behind(environment: dict[str, str]) -> None:
    """Its stacks, and the words by which batches are searched, go with it."""
    command = app_command("app_wait", 3, 5, "--hold")
    with running(command, {**environment, STAYS: "1"}) as target:
        assert target.truth()["ready"] is True
        with LiveCapture(LiveOptions(pids=(target.process.pid,))) as live:
            heard = 0
            while target.says_more_than(heard):
                heard += 1
                live.step(0)
                most = remembered(live)
                target.go()
            assert target.finish() == 0, target.stderr.text()
            assert all(most), most
            until = time.monotonic() + LIMIT_S
            has_ended = False
            while not has_ended:
                assert time.monotonic() < until, "the end was never reported"
                has_ended = any(isinstance(e, ProcessesEnded) for e in live.step(_ROUND_NS))
            assert remembered(live) == [0, 0, 0, 0]
