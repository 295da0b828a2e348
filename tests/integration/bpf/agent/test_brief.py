# SPDX-License-Identifier: Apache-2.0
"""A process that is gone before anybody looked at it has the name that the kernel gave it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.integration.bpf.agent.harness import FULL, agent, assert_accounted, beacon, totals
from tests.integration.collector.sink import OtlpSink

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


def test_a_process_that_ended_before_it_was_described_has_its_command_name(
    driver: dict[str, str], short_lived: Path, sink: OtlpSink
) -> None:
    """The agent is stopped while the process lives: only what BPF kept is known of it."""
    name = f"ogf-{uuid.uuid4().hex[:8]}"
    program = short_lived.with_name(name)
    shutil.copy(short_lived, program)
    with agent(sink, *FULL) as subject, beacon(driver, subject):
        subject.send(signal.SIGSTOP)
        done = subprocess.run([program, "17"], env=driver, capture_output=True, check=True)
        subject.send(signal.SIGCONT)
        subject.stop()
    assert done.stdout == b"17\n"
    assert_accounted({name: 17}, sink)
    assert totals(sink)[name, "gpu_launch"] == 17
