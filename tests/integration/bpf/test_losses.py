# SPDX-License-Identifier: Apache-2.0
"""What does not fit is counted, to the event, and shown; what can be had again is had again."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.bpf.drain import Drain, split_records
from otel_gpuflame.capture.bpf.kernel import CaptureKernel, RingSizes
from otel_gpuflame.capture.bpf.libbpf import BpfObject
from otel_gpuflame.cli.tables import print_ledger
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.build import app_command
from tests.integration.bpf.inprocess import Live, OwnCalls, capture_held
from tests.integration.bpf.recording import app, samples_of, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

PAGE = os.sysconf("SC_PAGE_SIZE")
LOST = "[lost: ring full]"
NO_STACK = "[no stack: lost on the way]"
STACKS = 1


@pytest.fixture
def undrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves the rings but when the test sweeps them: what fits does not depend on who is faster."""
    monkeypatch.setattr(Drain, "start", lambda _drain: None)


def launches_with_leaf(live: Live, name: str) -> int:
    """Launches of the profile that have a frame of this name."""
    samples = samples_of(live.bundles, GPU_LAUNCH)
    return total([s for s in samples if name in [frame.name for frame in s.frames]])


@pytest.mark.usefixtures("undrained")
def test_launches_that_do_not_fit_are_counted_and_shown(environment: dict[str, str]) -> None:
    """With a ring of one page most launches of a burst are lost: seen = sent + lost, and a frame says so."""
    made = 10_007
    command = app_command("app_launch", made, "--hold")
    live = capture_held(command, environment, rings=RingSizes(calls=PAGE))
    capture = live.capture
    lost = capture.count("launch", "ring_full")
    assert live.truth["launches"] == made
    assert 0 < lost < made
    assert capture.count("launch", "seen") == made
    assert capture.count("launch", "sent") == made - lost
    assert capture.pending() == {}
    assert launches_with_leaf(live, LOST) == lost
    assert total(samples_of(live.bundles, GPU_LAUNCH)) == made
    (account,) = [each for each in live.ledger.accounts() if each.kind == "launch"]
    assert (account.seen, account.profiled, account.lost) == (made, made - lost, lost)


@pytest.mark.usefixtures("undrained")
def test_launches_without_their_stack_stay_in_the_profile(environment: dict[str, str]) -> None:
    """A stack that did not fit and never came again is a mark on its launches, not a lost launch."""
    live = capture_held(
        app("many_stacks", 100, "--hold"), environment, rings=RingSizes(stacks=PAGE)
    )
    capture = live.capture
    unknown = [
        h for h in capture.calls["stack_hash"].tolist() if StackKey(*h) not in capture.stacks
    ]
    assert capture.count("stack", "ring_full") == len(unknown) > 0
    assert capture.count("stack", "lost") == len(unknown)
    assert capture.count("stack", "seen") == len(unknown) + capture.count("stack", "sent")
    assert launches_with_leaf(live, NO_STACK) == len(unknown)
    assert total(samples_of(live.bundles, GPU_LAUNCH)) == live.truth["launches"] == 100


@pytest.mark.usefixtures("undrained")
def test_lost_stacks_come_again_with_the_next_launch(environment: dict[str, str]) -> None:
    """A stack that was lost once is sent when it occurs again, and then explains the earlier launches too."""
    command = app("many_stacks", 100, "--again", "--hold")
    live = capture_held(command, environment, rings=RingSizes(stacks=PAGE))
    capture = live.capture
    assert capture.count("stack", "ring_full") > 0
    assert {StackKey(*h) for h in capture.calls["stack_hash"].tolist()} == set(capture.stacks)
    assert capture.count("stack", "sent") == len(capture.stacks)
    assert launches_with_leaf(live, NO_STACK) == 0
    samples = samples_of(live.bundles, GPU_LAUNCH)
    depths = {sum(name == "launch_at_depth" for name, _ in s.python()): s.value for s in samples}
    assert depths == dict.fromkeys(range(1, 101), 2)


@pytest.fixture
def own_calls(bpf_tier: None) -> Iterator[OwnCalls]:
    """Probes on a function that this test calls."""
    kernel = CaptureKernel()
    calls = OwnCalls.start(kernel)
    yield calls
    calls.drain.close()
    kernel.close()


def test_a_stack_is_sent_once_until_it_is_forgotten(own_calls: OwnCalls) -> None:
    """BPF sends a stack before its first call, not again, and again after user space asks for it."""
    sent = []
    keys = set()
    for forget in (False, True, False):
        own_calls.call(23)
        own_calls.drain.swap(0)
        stacks = [decode_stack(r) for r in split_records(own_calls.drain.data(STACKS))]
        sent.append(len(stacks))
        keys |= {stack.key for stack in stacks if stack is not None}
        for key in keys if forget else ():
            own_calls.kernel.forget_stack(key)
    assert sent == [1, 0, 1]
    assert len(keys) == 1
    counts = {(c.kind, c.outcome): c.count for c in own_calls.kernel.counters()}
    assert counts == {
        ("launch", "seen"): own_calls.made,
        ("launch", "sent"): own_calls.made,
        ("stack", "seen"): 2,
        ("stack", "sent"): 2,
    }


def test_children_without_room_in_the_table_of_targets_are_counted(
    fakes: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one process its calls are complete, and its children are known to be missing."""
    configured = CaptureKernel._configured

    def with_room_for_one(kernel: CaptureKernel, *arguments: Any, **options: Any) -> BpfObject:
        bpf_object = configured(kernel, *arguments, **options)
        bpf_object.set_map_size("targets", 1)
        return bpf_object

    monkeypatch.setattr(CaptureKernel, "_configured", with_room_for_one)
    command = app_command("app_fork", 23, 7, 11, "--hold")
    live = capture_held(command, environment, libraries=(fakes / "libcuda.so.1",))
    made = {each["pid"]: each["launches"] for each in live.truth["processes"]}
    parent, *children = made
    rows = live.capture.kind(Kind.LAUNCH)
    assert set(rows["tgid"].tolist()) == {parent}
    assert len(rows) == made[parent]
    assert live.capture.count("process", "table_full") == len(children)
    printed = io.StringIO()
    print_ledger(Console(file=printed, width=200), live.ledger)
    assert f"more than the table of targets holds: {len(children)}" in printed.getvalue()
