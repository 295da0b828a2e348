# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian's releases, fetched by apt into a cache of their own: nothing is installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.apt import PrivateApt, run
from tests.integration.collector.build import default_cache_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianKernel:
    """A series of kernels: `series` as in `uname -r`, `release` the Debian that has it."""

    series: str
    release: str
    version: str
    """Regular expression of what packages have between `linux-image-` and `-amd64`; its group orders builds."""


DEBIAN_11 = DebianKernel(series="5.10", release="bullseye", version=r"5\.10\.0-(\d+)")
DEBIAN_12 = DebianKernel(series="6.1", release="bookworm", version=r"6\.1\.0-(\d+)")
DEBIAN_12_NEWEST = DebianKernel(series="6.12", release="bookworm", version=r"6\.12\.(\d+)\+deb12")


def kernel_image(kernel: DebianKernel) -> Path:
    """The bootable image of the newest build of a series, from the cache or fetched into it.

    Raises:
        PackagesUnavailableError: This host has no apt with a Debian mirror, or the download failed.
    """
    with _cache(kernel) as folder:
        found = sorted(folder.glob("vmlinuz-*"))
        return found[-1] if found else _fetch_image(kernel, folder)


def kernel_headers(kernel: DebianKernel) -> Path:
    """Headers of the newest build of a series as one tree, which is what BCC wants.

    Raises:
        PackagesUnavailableError: As for `kernel_image`.
    """
    with _cache(kernel) as folder:
        found = sorted(folder.glob("headers-*"))
        return found[-1] if found else _fetch_headers(kernel, folder)


@contextmanager
def _cache(kernel: DebianKernel) -> Iterator[Path]:
    """The folder of a series. Several test processes may want the same kernel at once."""
    folder = default_cache_dir() / "kernels" / kernel.series
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _fetch_image(kernel: DebianKernel, cache: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="ogf-apt-") as name:
        apt = PrivateApt(Path(name), kernel.release)
        package = apt.newest("linux-image-", kernel.version)
        archive = apt.download(package)
        member = f"boot/vmlinuz-{package.removeprefix('linux-image-')}"
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
        ) as tar:
            run(["tar", "-xf", "-", "-C", name, f"./{member}"], stdin=tar.stdout)
        return Path(shutil.move(Path(name) / member, cache))


def _fetch_headers(kernel: DebianKernel, cache: Path) -> Path:
    """Debian has them in two packages, which refer to each other by links that BCC does not follow."""
    with tempfile.TemporaryDirectory(prefix="ogf-apt-") as name:
        apt = PrivateApt(Path(name), kernel.release)
        package = apt.newest("linux-headers-", kernel.version)
        tree = Path(name) / "tree"
        for each in (package.replace("-amd64", "-common"), package):
            apt.unpack(each, Path(name))
            for part in ("include", "arch/x86"):
                source = Path(name) / "usr/src" / each / part
                shutil.copytree(source, tree / part, dirs_exist_ok=True)
        release = package.removeprefix("linux-headers-")
        return Path(shutil.move(tree, cache / f"headers-{release}"))
