# SPDX-License-Identifier: Apache-2.0
"""CPythons of all versions that tests want: those of this host, and one from Debian that no host has yet."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.apt import PackagesUnavailableError, PrivateApt
from tests.integration.collector.build import default_cache_dir
from tests.tiers import require

SUPPORTED: Final = ("3.10", "3.11", "3.12", "3.13", "3.14")
_FROM_DEBIAN: Final = "3.14"
_PACKAGES: Final = (
    *("python3.14-minimal", "libpython3.14-minimal", "libpython3.14-stdlib", "libpython3.14-dev"),
    *("libc6", "zlib1g", "libexpat1", "libffi8"),
)
# It needs a newer C library than the host's: started by the loader that comes with that.
_LAUNCHER: Final = """#!/bin/sh
export PYTHONHOME={root}/usr
libraries={root}/usr/lib/{machine}-linux-gnu
exec $libraries/{loader} --library-path "$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" \\
  --argv0 {launcher} {root}/usr/bin/python3.14 "$@"
"""
_LOADERS: Final = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def interpreters(version: str) -> list[Path]:
    """Pythons of a minor version on this machine: pyenv's, else those of the search path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [
        path
        for path in sorted(pyenv.glob("versions/*/bin/python3"))
        if path.parents[1].name.startswith(f"{version}.")
    ]
    on_path = shutil.which(f"python{version}")
    return found or ([Path(on_path)] if on_path and _runs(on_path, version) else [])


def interpreter(version: str, tier: str) -> Path:
    """A Python of a minor version, fetched where that can be done; without one the test is skipped, or fails if its
    tier is forced.
    """
    found = interpreters(version)
    if found:
        return found[0]
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    if version != _FROM_DEBIAN:
        pytest.skip(f"no Python {version} on this machine")
    try:
        return _from_debian()
    except PackagesUnavailableError as error:
        require(tier, available=False, reason=f"no Python {version} here, nor in Debian: {error}")
        raise


def _runs(python: str, version: str) -> bool:
    """Whether it is a Python of that version: pyenv's shims exist for versions that are not there."""
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return re.match(rf"Python {re.escape(version)}\.", done.stdout) is not None


def _from_debian() -> Path:
    """A program that starts Debian's Python with Debian's C library, from the cache or fetched into it.

    Raises:
        PackagesUnavailableError: This host has no apt with a Debian mirror, or that no longer has this version.
    """
    machine = os.uname().machine
    cache = default_cache_dir() / "pythons"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / _FROM_DEBIAN
    launcher = root / "python3"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if launcher.exists():
            return launcher
        if machine not in _LOADERS:
            raise PackagesUnavailableError(f"not for {machine}")
        with tempfile.TemporaryDirectory(prefix="ogf-apt-") as name:
            apt = PrivateApt(Path(name), "sid")
            for package in _PACKAGES:
                apt.unpack(package, root)
        loader = _LOADERS[machine]
        text = _LAUNCHER.format(root=root, machine=machine, loader=loader, launcher=launcher)
        complete = launcher.with_suffix(".new")
        complete.write_text(text)
        complete.chmod(0o755)
        complete.replace(launcher)
    return launcher
