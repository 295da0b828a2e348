"""Settings for all tests. What a tier needs is checked by tests.tiers.require."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.tiers import require

# How long an example takes says something of the machine. And a counterexample that chance finds is a bug of long ago:
# it must not appear on somebody else's change.
settings.register_profile(
    "same on every machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same on every machine")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Programs get SIGINT, also where the tests run in the background and their shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def bpf_tier() -> None:
    """Tests that load BPF programs: root on a kernel with BTF."""
    require(
        "bpf",
        os.geteuid() == 0 and os.path.exists("/sys/kernel/btf/vmlinux"),
        "root and /sys/kernel/btf/vmlinux are needed",
    )
