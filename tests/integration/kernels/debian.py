# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian's releases, fetched by apt into a cache of their own: nothing is installed."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.integration.collector.build import default_cache_dir

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_LIMIT_S = 300
# What apt says of each index: where its repository is, and which release of Debian it serves.
_INDEX_FORMAT = "$(REPO_URI) $(RELEASE)"


class KernelUnavailableError(RuntimeError):
    """A kernel could not be fetched; the text says what was tried."""


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
        KernelUnavailableError: This host has no apt with a Debian mirror, or the download failed.
    """
    with _cache(kernel) as folder:
        found = sorted(folder.glob("vmlinuz-*"))
        return found[-1] if found else _fetch_image(kernel, folder)


def kernel_headers(kernel: DebianKernel) -> Path:
    """Headers of the newest build of a series as one tree, which is what BCC wants.

    Raises:
        KernelUnavailableError: As for `kernel_image`.
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
        apt = _PrivateApt(Path(name), kernel.release)
        package = apt.newest("linux-image-", kernel.version)
        archive = apt.download(package)
        member = f"boot/vmlinuz-{package.removeprefix('linux-image-')}"
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
        ) as tar:
            _run(["tar", "-xf", "-", "-C", name, f"./{member}"], stdin=tar.stdout)
        return Path(shutil.move(Path(name) / member, cache))


def _fetch_headers(kernel: DebianKernel, cache: Path) -> Path:
    """Debian has them in two packages, which refer to each other by links that BCC does not follow."""
    with tempfile.TemporaryDirectory(prefix="ogf-apt-") as name:
        apt = _PrivateApt(Path(name), kernel.release)
        package = apt.newest("linux-headers-", kernel.version)
        tree = Path(name) / "tree"
        for each in (package.replace("-amd64", "-common"), package):
            _run(["dpkg", "-x", str(apt.download(each)), name])
            for part in ("include", "arch/x86"):
                source = Path(name) / "usr/src" / each / part
                shutil.copytree(source, tree / part, dirs_exist_ok=True)
        release = package.removeprefix("linux-headers-")
        return Path(shutil.move(tree, cache / f"headers-{release}"))


class _PrivateApt:
    """apt with lists and sources in a folder: the release may be another than the host's."""

    def __init__(self, root: Path, release: str) -> None:
        self._root = root
        for folder in ("lists/partial", "archives/partial", "etc"):
            (root / folder).mkdir(parents=True)
        sources = "".join(
            f"deb [signed-by={_KEYRING}] {uri} {suite} main\n"
            for uri, suite in _sources_for(release)
        )
        (root / "sources.list").write_text(sources, encoding="utf-8")
        options = {
            "Dir::Etc::SourceList": root / "sources.list",
            "Dir::Etc::SourceParts": root / "etc",
            "Dir::State::Lists": root / "lists",
            "Dir::Cache": root,
            # As root apt would download as another user, who may not write here.
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        self._options = [f"-o{key}={value}" for key, value in options.items()]
        _run(["apt-get", *self._options, "-qq", "update"])

    def newest(self, prefix: str, version: str) -> str:
        """Name of the package whose number is highest."""
        names = _run(["apt-cache", *self._options, "pkgnames", prefix]).split()
        pattern = f"{prefix}{version}-amd64"
        builds = [(int(m[1]), n) for n in names if (m := re.fullmatch(pattern, n))]
        if not builds:
            raise KernelUnavailableError(f"the Debian mirror has no package {pattern}")
        return max(builds)[1]

    def download(self, package: str) -> Path:
        """The package's archive."""
        _run(["apt-get", *self._options, "-qq", "download", package], cwd=self._root)
        return next(self._root.glob(f"{package}_*.deb"))


def _sources_for(release: str) -> list[tuple[str, str]]:
    """(repository, suite) of a release on the mirror that the host itself uses."""
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise KernelUnavailableError("Debian's kernels are fetched with apt from a Debian mirror")
    lines = _run(["apt-get", "indextargets", "--format", _INDEX_FORMAT]).splitlines()
    hosts = {tuple(line.split()) for line in lines if len(line.split()) == 2}
    main = {uri for uri, suite in hosts if re.fullmatch(r"[a-z]+", suite) and "debian" in uri}
    security = {uri for uri, suite in hosts if suite.endswith("-security")}
    if not main or not security:
        raise KernelUnavailableError(
            "apt knows no Debian mirror: run apt-get update, or use a Debian host"
        )
    return [(min(main), release), (min(security), f"{release}-security")]


def _run(command: list[str], *, cwd: Path | None = None, stdin: IO[bytes] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=_APT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailableError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise KernelUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
