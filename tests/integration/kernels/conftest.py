# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that boot other kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.apt import PackagesUnavailableError
from tests.fakes.build import build_fakes
from tests.integration.kernels.debian import DebianKernel, kernel_image
from tests.integration.kernels.guest import QEMU
from tests.tiers import require


@pytest.fixture(scope="session")
def fakes() -> Path:
    """Directory of the fake libcuda.so.1."""
    return build_fakes()


def bootable(kernel: DebianKernel) -> Path:
    """The kernel's image; the test is skipped, or fails in a forced tier, where it cannot be had."""
    require(
        "kernels",
        shutil.which(QEMU) is not None,
        f"{QEMU} is missing: apt-get install qemu-system-x86",
    )
    try:
        return kernel_image(kernel)
    except PackagesUnavailableError as error:
        require("kernels", False, str(error))
        raise
