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
    package: str
    """Regular expression of the package's name; its last group of digits orders builds."""


DEBIAN_11 = DebianKernel(
    series="5.10", release="bullseye", package=r"linux-image-5\.10\.0-(\d+)-amd64"
)
DEBIAN_12 = DebianKernel(
    series="6.1", release="bookworm", package=r"linux-image-6\.1\.0-(\d+)-amd64"
)
DEBIAN_12_NEWEST = DebianKernel(
    series="6.12", release="bookworm", package=r"linux-image-6\.12\.(\d+)\+deb12-amd64"
)


def kernel_image(kernel: DebianKernel) -> Path:
    """The bootable image of the newest build of a series, from the cache or fetched into it.

    Raises:
        KernelUnavailableError: This host has no apt with a Debian mirror, or the download failed.
    """
    cache = default_cache_dir() / "kernels" / kernel.series
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        found = sorted(cache.glob("vmlinuz-*"))
        return found[-1] if found else _fetch(kernel, cache)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Several test processes may want the same kernel at once."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(kernel: DebianKernel, cache: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="ogf-apt-") as name:
        apt = _PrivateApt(Path(name), kernel.release)
        package = apt.newest(kernel.package)
        archive = apt.download(package)
        release = package.removeprefix("linux-image-")
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
        ) as tar:
            member = f"./boot/vmlinuz-{release}"
            _run(["tar", "-xf", "-", "-C", name, member], stdin=tar.stdout)
        return Path(shutil.move(Path(name) / "boot" / f"vmlinuz-{release}", cache))


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

    def newest(self, pattern: str) -> str:
        """Name of the package whose number is highest."""
        names = _run(["apt-cache", *self._options, "pkgnames", "linux-image-"]).split()
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
