# SPDX-License-Identifier: Apache-2.0
"""Boots a kernel in QEMU, without KVM and network, and runs programs under it."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.integration.kernels import guest_init
from tests.integration.kernels.guest_tree import environment, python, write_bcc, write_tree
from tests.integration.kernels.newc import InitramfsWriter

QEMU = "qemu-system-x86_64"
BOOT_LIMIT_S = 1_700
"""All of a guest's programs end within this, on an emulated CPU of a busy machine."""
_JOB_LIMIT_S = 600
_MEMORY_MIB = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program to run in the guest; `files` are sent back when it has ended."""

    name: str
    argv: Sequence[str]
    files: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a program left behind."""

    exit_code: int
    stdout: str
    stderr: str
    files: Mapping[str, bytes]


class GuestError(AssertionError):
    """The guest did not do all its jobs; the text ends with its console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a guest holds besides this interpreter and the product."""

    fakes: Path
    """Folder of the fake driver."""
    programs: Mapping[str, bytes]
    """Files that are put into /programs."""
    bcc: tuple[Path, Path] | None = None
    """The package of the distribution, and kernel headers."""


def write_initramfs(path: Path, contents: Contents, jobs: Sequence[Job]) -> None:
    """Everything that the guest holds."""
    with path.open("wb") as file:
        archive = InitramfsWriter(file)
        archive.console()
        write_tree(archive, contents.fakes)
        if contents.bcc is not None:
            write_bcc(archive, *contents.bcc)
        for name, content in contents.programs.items():
            archive.file(PurePosixPath("/programs") / name, content)
        archive.file(PurePosixPath("/init"), _init_script(), executable=True)
        archive.file(PurePosixPath("/jobs.json"), _jobs_json(jobs))
        archive.finish()


def run_guest(kernel: Path, contents: Contents, jobs: Sequence[Job]) -> dict[str, JobResult]:
    """Boot, run the jobs one after the other, and return their results by name.

    Raises:
        GuestError: A job has no result.
    """
    with tempfile.TemporaryDirectory(prefix="ogf-guest-") as name:
        folder = Path(name)
        write_initramfs(folder / "initramfs", contents, jobs)
        _boot(kernel, folder)
        console = (folder / "console").read_text(encoding="utf-8", errors="replace")
        results = _read_results(folder / "results")
    if results.keys() != {job.name for job in jobs}:
        raise GuestError(f"only {sorted(results)} of the jobs ended; console:\n{console[-4000:]}")
    return results


def _boot(kernel: Path, folder: Path) -> None:
    command = [
        *(QEMU, "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", str(_MEMORY_MIB)),
        *("-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none"),
        *("-serial", f"file:{folder / 'console'}", "-serial", f"file:{folder / 'results'}"),
        *("-kernel", str(kernel), "-initrd", str(folder / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BOOT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return
    if done.returncode:
        raise GuestError(f"{QEMU}: {done.stderr}")


def _read_results(path: Path) -> dict[str, JobResult]:
    lines = path.read_text(encoding="ascii", errors="replace").splitlines(keepends=True)
    # A guest that was cut off leaves half a line.
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return {
        result["name"]: JobResult(
            exit_code=result["exit_code"],
            stdout=result["stdout"],
            stderr=result["stderr"],
            files={path: base64.b64decode(text) for path, text in result["files"].items()},
        )
        for result in found
    }


def _init_script() -> bytes:
    source = Path(guest_init.__file__).read_bytes()
    return f"#!{python()}\n".encode() + source


def _jobs_json(jobs: Sequence[Job]) -> bytes:
    described = [
        {
            "name": job.name,
            "argv": list(job.argv),
            "environment": {**environment(), **job.environment},
            "files": list(job.files),
            "limit_s": _JOB_LIMIT_S,
        }
        for job in jobs
    ]
    return json.dumps(described).encode()
