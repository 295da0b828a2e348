# SPDX-License-Identifier: Apache-2.0
"""Packages of any release of Debian, fetched by apt without installing them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import IO

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_LIMIT_S = 300
# What apt says of each index: where its repository is, and which release of Debian it serves.
_INDEX_FORMAT = "$(REPO_URI) $(RELEASE)"


class PackagesUnavailableError(RuntimeError):
    """Packages could not be fetched; the text says what was tried."""


class PrivateApt:
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
        run(["apt-get", *self._options, "-qq", "update"])

    def newest(self, prefix: str, version: str) -> str:
        """Name of the package whose number is highest."""
        names = run(["apt-cache", *self._options, "pkgnames", prefix]).split()
        pattern = f"{prefix}{version}-amd64"
        builds = [(int(m[1]), n) for n in names if (m := re.fullmatch(pattern, n))]
        if not builds:
            raise PackagesUnavailableError(f"the Debian mirror has no package {pattern}")
        return max(builds)[1]

    def download(self, package: str) -> Path:
        """The package's archive."""
        run(["apt-get", *self._options, "-qq", "download", package], cwd=self._root)
        return next(self._root.glob(f"{package}_*.deb"))

    def unpack(self, package: str, root: Path) -> None:
        """Put the package's files below `root`; nothing of it is run."""
        run(["dpkg", "-x", str(self.download(package)), str(root)])


def _sources_for(release: str) -> list[tuple[str, str]]:
    """(repository, suite) of a release on the mirror that the host itself uses."""
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        raise PackagesUnavailableError(
            "Debian's packages are fetched with apt from a Debian mirror"
        )
    lines = run(["apt-get", "indextargets", "--format", _INDEX_FORMAT]).splitlines()
    hosts = {tuple(line.split()) for line in lines if len(line.split()) == 2}
    main = {uri for uri, suite in hosts if re.fullmatch(r"[a-z]+", suite) and "debian" in uri}
    security = {uri for uri, suite in hosts if suite.endswith("-security")}
    if not main or not security:
        raise PackagesUnavailableError(
            "apt knows no Debian mirror: run apt-get update, or use a Debian host"
        )
    if release == "sid":
        return [(min(main), release)]
    return [(min(main), release), (min(security), f"{release}-security")]


def run(command: list[str], *, cwd: Path | None = None, stdin: IO[bytes] | None = None) -> str:
    """What a command prints.

    Raises:
        PackagesUnavailableError: It is missing, hangs or fails.
    """
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
        raise PackagesUnavailableError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise PackagesUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
