"""Settings for all tests. What a tier needs is checked by tests.tiers.require."""

from __future__ import annotations

import os

import pytest

from tests.tiers import require


@pytest.fixture
def bpf_tier() -> None:
    """Tests that load BPF programs: root on a kernel with BTF."""
    require(
        "bpf",
        os.geteuid() == 0 and os.path.exists("/sys/kernel/btf/vmlinux"),
        "root and /sys/kernel/btf/vmlinux are needed",
    )
