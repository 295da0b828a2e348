# SPDX-License-Identifier: Apache-2.0
"""Finding the distribution's BCC and the headers that it compiles with, and saying what is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf import bcc_module
from otel_gpuflame.capture.bpf.bcc_module import (
    HEADERS_VARIABLE,
    find_bcc,
    find_headers,
    load_bcc,
)
from otel_gpuflame.errors import SourceUnavailable

RELEASE = os.uname().release


def touch(path: Path) -> Path:
    """An empty file."""
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which packages are looked for; BCC has not been loaded."""
    folder = tmp_path / "dist-packages"
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(bcc_module, "_DISTRIBUTION", ())
    monkeypatch.delitem(sys.modules, "_distribution_bcc", raising=False)
    return folder


def test_the_package_of_the_distribution_is_found(distribution: Path) -> None:
    """By a file that only the real one has."""
    touch(distribution / "bcc" / "libbcc.py")
    assert find_bcc() == distribution / "bcc"


def test_another_package_of_that_name_is_not_taken_for_it(distribution: Path) -> None:
    """PyPI's bcc is about crystals."""
    touch(distribution / "bcc" / "__init__.py")
    assert find_bcc() is None


def test_the_package_to_install_is_named(distribution: Path) -> None:
    """For more than one distribution, with a warning of PyPI."""
    with pytest.raises(SourceUnavailable) as raised:
        load_bcc()
    for part in ("apt-get install python3-bpfcc", "dnf install python3-bcc", "PyPI"):
        assert part in str(raised.value)


def test_a_bcc_without_its_library_says_so(
    distribution: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the import says is shown, and a later try starts afresh."""
    touch(distribution / "bcc" / "libbcc.py")
    (distribution / "bcc" / "__init__.py").write_text("raise OSError('libbcc.so.0: not found')")
    touch(tmp_path / "headers" / "include/linux/kconfig.h")
    monkeypatch.setenv(HEADERS_VARIABLE, str(tmp_path / "headers"))
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match=r"libbcc\.so\.0: not found"):
            load_bcc()


@pytest.mark.parametrize("link", ["build", "source"])
def test_headers_of_the_running_kernel_are_found(link: str, tmp_path: Path) -> None:
    """Where distributions install them."""
    folder = tmp_path / "lib/modules" / RELEASE / link
    touch(folder / "include/linux/kconfig.h")
    assert find_headers({}, tmp_path) == folder


def test_headers_inside_the_kernel_are_found(tmp_path: Path) -> None:
    """CONFIG_IKHEADERS puts an archive into sysfs."""
    archive = touch(tmp_path / "sys/kernel/kheaders.tar.xz")
    assert find_headers({}, tmp_path) == archive


def test_named_headers_come_first(tmp_path: Path) -> None:
    """And nothing else is taken where they are none."""
    touch(tmp_path / "lib/modules" / RELEASE / "build/include/linux/kconfig.h")
    named = tmp_path / "named"
    assert find_headers({HEADERS_VARIABLE: str(named)}, tmp_path) is None
    touch(named / "include/linux/kconfig.h")
    assert find_headers({HEADERS_VARIABLE: str(named)}, tmp_path) == named


def test_missing_headers_have_a_remedy(distribution: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package for the running kernel, and the variable for a tree of another one."""
    touch(distribution / "bcc" / "libbcc.py")
    monkeypatch.delenv(HEADERS_VARIABLE, raising=False)
    monkeypatch.setattr(bcc_module, "find_headers", lambda _environment: None)
    with pytest.raises(SourceUnavailable) as raised:
        load_bcc()
    for part in (f"linux-headers-{RELEASE}", HEADERS_VARIABLE, "docs/kernels.md"):
        assert part in str(raised.value)
