# SPDX-License-Identifier: Apache-2.0
"""A process that is gone before anybody looked at it has the name that the kernel gave it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.integration.bpf.agent.harness import (
    FULL,
    agent,
    assert_accounted,
    beacon,
    totals,
    wait_until,
)
from tests.integration.collector.sink import OtlpSink

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]


def test_a_process_that_ended_before_it_was_described_has_its_command_name(
    driver: dict[str, str], short_lived: Path, sink: OtlpSink
) -> None:
    """The agent is stopped while the process lives: only what BPF kept is known of it."""
    name = f"ogf-{uuid.uuid4().hex[:8]}"
    program = short_lived.with_name(name)
    shutil.copy(short_lived, program)
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        subject.pause()
        done = subprocess.run([program, "17"], env=driver, capture_output=True, check=True)
        subject.send(signal.SIGCONT)
        subject.stop()
    assert done.stdout == b"17\n"
    assert_accounted({name: 17}, sink)
    assert totals(sink)[name, "gpu_launch"] == 17


def test_launches_before_an_exec_that_nobody_saw_coming_are_the_old_programs(
    driver: dict[str, str], short_lived: Path, sink: OtlpSink
) -> None:
    """The agent is stopped meanwhile: when it looks, the process has been another program for long."""
    old, new = (f"ogf-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in (old, new):
        shutil.copy(short_lived, short_lived.with_name(name))
    programs = [str(short_lived.with_name(name)) for name in (old, new)]
    command = [programs[0], "17", "0", "0", programs[1], "5", "3000"]
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        subject.pause()
        with subprocess.Popen(command, env=driver, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"17\n"
            wait_until(lambda: comm_of(process.pid) == new, "the new program")
            # Both of its launches and its exec are reported before the agent runs again.
            wait_until(lambda: state_of(process.pid) in "SZ", "the new program's rest, or its end")
            subject.send(signal.SIGCONT)
        subject.stop()
    # What was missed while it was stopped is in the books; neither program has launches of the other.
    assert_accounted({old: 17, new: 5}, sink)


def comm_of(pid: int) -> str:
    """The kernel's name of a process."""
    return (Path("/proc") / str(pid) / "comm").read_text().strip()


def state_of(pid: int) -> str:
    """Whether a process runs, sleeps or has ended."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
