# SPDX-License-Identifier: Apache-2.0
"""Which libbpf is taken: the named one, the bundled one, the system's, in this order."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf.library import BUNDLED, LIBRARY_VARIABLE, choose_library
from otel_gpuflame.errors import SourceUnavailable
from tests.tiers import require


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of the environment that the tests run in plays no part."""
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def system() -> Path:
    """The system's libbpf, as the compiler finds it."""
    require("bpf", shutil.which("cc") is not None, "a C compiler finds the system's libbpf")
    command = ["cc", "-print-file-name=libbpf.so.1"]
    found = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    require("bpf", found.is_absolute(), "libbpf is not installed")
    return found


@pytest.fixture
def bundled(system: Path, tmp_path: Path) -> Path:
    """A bundled library that works."""
    return Path(shutil.copy(system, tmp_path / "libbpf.so.1"))


@pytest.fixture
def unusable(tmp_path: Path) -> Path:
    """A file that is no library."""
    path = tmp_path / "unusable.so"
    path.write_bytes(b"not ELF")
    return path


def outdated(directory: Path) -> Path:
    """A library that says that it is libbpf 0.8, and has all our functions as far as anybody looks."""
    path = directory / "outdated.so"
    source = (
        "unsigned libbpf_major_version(void) { return 0; }"
        'const char *libbpf_version_string(void) { return "v0.8"; }'
    )
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    command += ["-Wl,--no-as-needed", "-lbpf"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_the_bundled_library_comes_before_the_systems(bundled: Path) -> None:
    """With both there, the bundled one is used."""
    library = choose_library(bundled)
    assert library.origin == "bundled"
    assert library.functions._name == str(bundled)
    assert library.version.startswith("v")


def test_without_a_bundled_library_the_systems_is_used(system: Path, tmp_path: Path) -> None:
    """A package that was built without it works where libbpf is installed."""
    assert choose_library(tmp_path / "absent").origin == "the system's"


def test_a_bundled_library_that_cannot_be_used_is_named_beside_the_systems(
    system: Path, unusable: Path
) -> None:
    """The system's one is used, and it says why."""
    origin = choose_library(unusable).origin
    assert origin.startswith("the system's, since the bundled one cannot be used: ")
    assert str(unusable) in origin


def test_the_named_library_comes_first(bundled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user names is used, and the variable that says so is shown."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(bundled))
    library = choose_library()
    assert library.functions._name == str(bundled)
    assert library.origin == f"{bundled}, by {LIBRARY_VARIABLE}"


def test_a_named_library_that_cannot_be_used_is_an_error(
    bundled: Path, unusable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is taken in its place; the message names it and the remedy."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(unusable))
    with pytest.raises(SourceUnavailable) as raised:
        choose_library(bundled)
    for part in (str(unusable), LIBRARY_VARIABLE, "libbpf 1.0 or newer", "libelf1"):
        assert part in str(raised.value)


def test_a_library_before_1_0_is_refused(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the functions, but reports failures in another way."""
    path = outdated(tmp_path)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    with pytest.raises(SourceUnavailable, match=r"is v0\.8"):
        choose_library()


def test_the_bundled_library_is_a_copy_of_the_systems(system: Path) -> None:
    """It is unchanged, and its notice lies beside it."""
    require("bpf", BUNDLED.is_file(), "run `make bpf`")
    assert BUNDLED.read_bytes() == system.read_bytes()
    notice = BUNDLED.with_name("libbpf-NOTICE").read_text(encoding="utf-8")
    assert "BSD-2-Clause" in notice
    assert "Copyright (c)" in notice
