# SPDX-License-Identifier: Apache-2.0
"""Launches are counted exactly: seen + lost = made."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, record, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

READABLE = "saxpy"


def assert_all_counted(recording: Recording, made: int) -> None:
    """The program made `made` launches; all are in the books, and what arrived is in the profile."""
    capture = recording.capture
    rows = capture.kind(Kind.LAUNCH)
    assert recording.exit_code == 0, recording.stderr
    assert recording.truth["launches"] == made
    assert capture.count("launch", "seen") == made
    assert len(rows) + capture.count("launch", "ring_full") == made
    assert capture.pending() == {}
    samples = recording.samples(GPU_LAUNCH)
    assert total(samples) == made
    assert {s.frames[-1].name for s in samples} <= {READABLE, "[lost: ring full]"}


@pytest.mark.parametrize("count", [23, 1_009, 100_003])
def test_every_launch_is_counted_or_known_to_be_lost(
    count: int, output: Path, environment: dict[str, str]
) -> None:
    """Launches in a tight loop, as fast as the driver takes them, are seen or counted as lost."""
    recording = record(output, *app_command("app_launch", count), environment=environment)
    assert_all_counted(recording, count)


@pytest.mark.parametrize("threads", [1, 4])
def test_nothing_is_lost_at_fifty_thousand_launches_a_second(
    threads: int, output: Path, environment: dict[str, str]
) -> None:
    """At 50,000 launches/s every launch arrives, with the thread that made it."""
    command = app_command("app_launch", 100_003, "--rate", 50_000, "--threads", threads)
    recording = record(output, *command, environment=environment)
    assert_all_counted(recording, 100_003)
    rows = recording.capture.kind(Kind.LAUNCH)
    assert len(rows) == 100_003
    assert recording.account("launch").lost == 0
    made = {thread["tid"]: thread["launches"] for thread in recording.truth["threads"]}
    assert {tid: int((rows["tid"] == tid).sum()) for tid in set(rows["tid"].tolist())} == made


def test_launches_of_each_thread_keep_their_order(
    output: Path, environment: dict[str, str]
) -> None:
    """Times of one thread's launches never go back."""
    command = app_command("app_launch", 1_009, "--threads", 4)
    rows = record(output, *command, environment=environment).capture.kind(Kind.LAUNCH)
    for tid in set(rows["tid"].tolist()):
        times = rows["start_ns"][rows["tid"] == tid]
        assert (times[1:] >= times[:-1]).all()
