# SPDX-License-Identifier: Apache-2.0
"""The agent needs the capabilities that are documented, and no others; what is missing with these alone is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fakes.build import app_command
from tests.integration.bpf.agent.harness import (
    FULL,
    agent,
    assert_accounted,
    beacon,
    driver_of,
    end_when,
    has_arrived,
    stays,
    unique,
)
from tests.integration.bpf.session import running
from tests.integration.collector.sink import OtlpSink
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("side_by_side")]

CAPABILITIES = "bpf", "perfmon", "sys_ptrace", "dac_read_search", "checkpoint_restore"
ONLY_THESE = ",".join(["-all", *(f"+{name}" for name in CAPABILITIES)])
NOBODY = "--reuid=65534", "--regid=65534", "--clear-groups", f"--ambient-caps={ONLY_THESE}"
BITS = {"bpf": 39, "perfmon": 38, "sys_ptrace": 19, "dac_read_search": 2, "checkpoint_restore": 40}


def effective(pid: int) -> int:
    """Capabilities that a process has."""
    text = (Path("/proc") / str(pid) / "status").read_text()
    return int(text.partition("CapEff:")[2].split()[0], 16)


@pytest.mark.parametrize("identity", [NOBODY, ()], ids=["nobody", "root"])
def test_documented_capabilities_are_enough(
    identity: tuple[str, ...], driver: dict[str, str], sink: OtlpSink
) -> None:
    """With these five alone all launches arrive; where tracepoints cannot be found, it says what follows from that."""
    require("bpf", shutil.which("setpriv") is not None, "setpriv (util-linux) is missing")
    prefix = ("setpriv", *identity, f"--inh-caps={ONLY_THESE}", f"--bounding-set={ONLY_THESE}")
    service = unique("unprivileged")
    command = app_command("app_launch", 700)
    with agent(sink, *FULL, prefix=prefix) as subject, beacon(driver, subject):
        assert effective(subject.pid) == sum(1 << BITS[name] for name in CAPABILITIES)
        # Where new mappings are not reported, a process is found by its first call.
        with running(command, stays(driver, service)) as program:
            truth = end_when(lambda _: has_arrived(service, 700, sink), program)
        assert truth["launches"] == 700
        late = "libraries loaded later are found by scanning once a second"
        tracefs = Path("/sys/kernel/tracing/events/syscalls").exists()
        assert (late in subject.log) is not tracefs
        assert subject.entry_links(driver_of(driver)) > 0
        subject.stop()
    assert_accounted({service: 700}, sink)


def test_without_sys_ptrace_the_agent_says_once_what_follows(
    driver: dict[str, str], sink: OtlpSink
) -> None:
    """Calls of other users' processes still come, but nobody can say whose they are: that must not be silent."""
    require("bpf", shutil.which("setpriv") is not None, "setpriv (util-linux) is missing")
    without = ONLY_THESE.replace("+sys_ptrace,", "")
    nobody = (*NOBODY[:-1], f"--ambient-caps={without}")
    prefix = ("setpriv", *nobody, f"--inh-caps={without}", f"--bounding-set={without}")
    said = "CAP_SYS_PTRACE: other users' processes cannot be read"
    with agent(sink, *FULL, prefix=prefix) as subject:
        subject.wait_for_log(said)
        subject.stop()
        assert subject.log.count(said) == 1
