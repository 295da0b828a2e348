# SPDX-License-Identifier: Apache-2.0
"""`doctor` on this host: with all rights, with the documented ones, and with each of those taken away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.build import app_command
from tests.integration.bpf.recording import LIMIT_S, ROOT, app
from tests.integration.bpf.session import running
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

CAPABILITIES = {
    "CAP_BPF": 39,
    "CAP_PERFMON": 38,
    "CAP_SYS_PTRACE": 19,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_CHECKPOINT_RESTORE": 40,
}
NOBODY = 65534
# What else cannot be done without a capability.
ALSO = {
    "CAP_BPF": {"CAP_PERFMON"},
    "CAP_PERFMON": {"perf events"},
    "CAP_SYS_PTRACE": {"process memory"},
    "CAP_DAC_READ_SEARCH": set(),
    "CAP_CHECKPOINT_RESTORE": set(),
}
RIGHTS = {*CAPABILITIES, "perf events", "process memory"}

Checks = dict[str, dict[str, str]]


def doctor(*arguments: object, prefix: Sequence[str] = ()) -> tuple[int, Checks]:
    """Run the command; its exit code, and the checks by name."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "otel_gpuflame", "doctor", "--json", *map(str, arguments)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    return done.returncode, {check["name"]: check for check in document["checks"]}


def with_capabilities(names: set[str], *, user: int = 0) -> list[str]:
    """A command prefix that leaves these capabilities, and no others."""
    require("bpf", shutil.which("setpriv") is not None, "setpriv of util-linux is needed")
    numbers = ",".join(["-all", *(f"+cap_{CAPABILITIES[name]}" for name in sorted(names))])
    flags = [f"--bounding-set={numbers}", f"--inh-caps={numbers}", f"--ambient-caps={numbers}"]
    if user:
        flags += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return ["setpriv", *flags]


def complaining(checks: Checks) -> set[str]:
    """Names of rights that are not there."""
    return {name for name in RIGHTS if checks[name]["status"] != "ok"}


def test_this_host_passes() -> None:
    """As root, where the other tests of this tier run, nothing fails and uprobes deliver all calls."""
    code, checks = doctor()
    assert code == 0
    assert [name for name, check in checks.items() if check["status"] == "fail"] == []
    assert complaining(checks) == set()
    assert checks["uprobes deliver"]["detail"] == "23 of 23 calls arrived"
    assert checks["load BPF programs"]["status"] == "ok"
    assert checks["lockdown"]["status"] == "ok"
    assert len(checks) >= 15


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root", "nobody"])
def test_the_documented_capabilities_are_enough(user: int) -> None:
    """With those five and no others capture works, for root and for any other user."""
    code, checks = doctor(prefix=with_capabilities(set(CAPABILITIES), user=user))
    assert code == 0
    assert complaining(checks) == set()
    assert checks["uprobes deliver"]["status"] == "ok"


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_missing_capability_is_found_by_trying(name: str) -> None:
    """Without one of them its check complains and names it, and no other right does that it is not part of."""
    code, checks = doctor(prefix=with_capabilities(set(CAPABILITIES) - {name}))
    assert complaining(checks) == {name} | ALSO[name]
    assert checks[name]["remedy"].endswith(f"give {name}")
    assert code == (1 if checks[name]["status"] == "fail" else 0)


def test_without_any_right_every_reason_is_named() -> None:
    """Exit code 1, and no check breaks."""
    code, checks = doctor(prefix=with_capabilities(set()))
    assert code == 1
    assert complaining(checks) == RIGHTS
    assert checks["load BPF programs"]["status"] == "fail"
    assert checks["locked memory"]["status"] == "skip"
    assert not any("the check itself failed" in check["detail"] for check in checks.values())


def test_a_target_is_looked_at(environment: dict[str, str]) -> None:
    """A Python program with a GPU library and published spans."""
    with running(app("spans", "--hold"), environment) as target:
        assert target.truth()["ready"] is True
        code, checks = doctor("--pid", target.process.pid)
        target.go()
        assert target.finish() == 0
    assert code == 0
    assert checks["target"]["status"] == "ok"
    assert "libcuda.so.1 (" in checks["target's GPU libraries"]["detail"]
    # The program calls the driver itself, so there is no runtime.
    assert checks["target's CUDA runtime"]["status"] == "warn"
    assert checks["target's interpreter"]["status"] == "ok"
    assert checks["target's spans"]["status"] == "ok"
    assert checks["target's service name"]["detail"] == "spans.py"


def test_a_target_without_spans_is_told_how_to_get_them(environment: dict[str, str]) -> None:
    """The same without the instrumentation."""
    with running(app_command("app_launch", 1, "--hold"), environment) as target:
        assert target.truth()["ready"] is True
        _, checks = doctor("--pid", target.process.pid)
        target.go()
        assert target.finish() == 0
    assert checks["target's spans"]["status"] == "warn"
    assert "instrument.install()" in checks["target's spans"]["remedy"]


def test_a_target_that_is_not_there_ends_with_1() -> None:
    """What was asked for cannot be done."""
    code, checks = doctor("--pid", 2**22)
    assert code == 1
    assert checks["target"]["status"] == "fail"
