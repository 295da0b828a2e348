# SPDX-License-Identifier: Apache-2.0
"""Containers of one image: each has an overlay of its own over files that are the same to the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from otel_gpuflame.capture.attached import UNUSED_FOR_NS, LibraryUse
from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.real_files import is_on_overlay, shows_probe
from otel_gpuflame.events.wire import Kind
from tests.integration.bpf.recording import APPS, Recording, app
from tests.integration.bpf.session import attach_and_record
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier", "can_overlay")]

LIBRARY: Final = "libcuda.so.1"
CHANGES: Final = {"first": "true", "second": "true", "changed": f"chmod 700 /opt/{LIBRARY}"}
"""Containers, and what each does to its file before it uses it: a changed one is a file of its own."""


def overlay(lower: Path, scratch: str, target: str) -> str:
    """Shell commands that mount one, with its changes on a file system of its own."""
    layers = f"lowerdir={shlex.quote(str(lower))},upperdir={scratch}/upper,workdir={scratch}/work"
    return (
        f"mount -t tmpfs tmpfs {scratch} && mkdir {scratch}/upper {scratch}/work"
        f" && mount -t overlay overlay -o {layers} {target}"
    )


@pytest.fixture(scope="module")
def image(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lower directory."""
    image = tmp_path_factory.mktemp("image") / "lower"
    shutil.copytree(fakes, image)
    return image


@pytest.fixture(scope="module")
def can_overlay(image: Path) -> None:
    """Root may mount overlays over it."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", overlay(image, "/mnt", "/opt")],
        capture_output=True,
        text=True,
        check=False,
    )
    require("bpf", done.returncode == 0, f"overlays cannot be mounted here: {done.stderr}")


@pytest.fixture(scope="module")
def recording(
    image: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    """A program in each container, recorded by the pid of their common parent."""
    programs = []
    for name, change in CHANGES.items():
        program = shlex.join([sys.executable, "-u", str(APPS / "late.py"), "--hold"])
        script = (
            f"{overlay(image, '/mnt', '/opt')} && {change} && LD_LIBRARY_PATH=/opt exec {program}"
        )
        command = ["unshare", "-m", "sh", "-c", script]
        programs.append({"name": name, "command": command, "environment": {}})
    output = tmp_path_factory.mktemp("overlays") / "test.ogfcap"
    command = [*app("containers", json.dumps(programs)), "--hold"]
    return attach_and_record(output, command, environment, "--no-cpu")


@pytest.mark.parametrize("container", CHANGES)
def test_each_launch_is_delivered_once(recording: Recording, container: str) -> None:
    """Of the programs that share a file as of the one with a copy, which `stat` does not tell apart."""
    (truth,) = [truth for truth in recording.truths if truth["name"] == container]
    launches = recording.capture.kind(Kind.LAUNCH)
    assert launches["tgid"].tolist().count(truth["host_pid"]) == truth["launches"] == 23


def test_each_wait_is_seen_to_return(recording: Recording) -> None:
    """Once each: a call that begins twice returns once."""
    assert recording.capture.pending() == {}
    assert recording.capture.count("wait", "no_return") == 0
    assert len(recording.capture.kind(Kind.WAIT)) == len(CHANGES)


@pytest.fixture
def overlays(image: Path, tmp_path: Path) -> Iterator[list[Path]]:
    """Two over the image, in our own mount namespace."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in ("first", "second"):
            scratch, target = tmp_path / f"{name}-scratch", tmp_path / name
            scratch.mkdir()
            target.mkdir()
            command = overlay(image, shlex.quote(str(scratch)), shlex.quote(str(target)))
            subprocess.run(["sh", "-c", command], check=True)
            stack.callback(unmount, ["-l", str(scratch)])
            stack.callback(unmount, ["-l", str(target)])
            found.append(target)
        yield found


def unmount(arguments: Sequence[str]) -> bool:
    """Whether it could be."""
    return subprocess.run(["umount", *arguments], capture_output=True, check=False).returncode == 0


def test_the_mount_of_a_container_that_is_gone_is_let_go(overlays: list[Path]) -> None:
    """Others use the file on: its probes stay, held through the mount of one of those."""
    first, second = overlays
    kernel = CaptureKernel()
    attachments = Attachments(kernel.uprobes, in_windows=False)
    try:
        _, other = [attachments.attach(each / LIBRARY, 0) for each in overlays]
        assert isinstance(other, LibraryUse)
        assert len(attachments.libraries) == 1
        assert not unmount([str(first)])
        now_ns = 2 * UNUSED_FOR_NS
        attachments.used([other], now_ns)
        assert attachments.let_go_of_unused(now_ns) == {other.key}
        assert attachments.attach(second / LIBRARY, now_ns) == other
        assert attachments.let_go_of_unused(now_ns) == set()
        assert unmount([str(first)])
        with (second / LIBRARY).open("rb") as file:
            assert is_on_overlay(file.fileno())
            assert shows_probe(file.fileno(), attachments.libraries[0].points[0].offset)
    finally:
        attachments.close()
        kernel.close()


@pytest.fixture
def another_image(image: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Its lower directory, and an overlay over it. Equal files, copied with their times."""
    lower, scratch, target = (tmp_path / name for name in ("other", "other-scratch", "merged"))
    shutil.copytree(image, lower)
    scratch.mkdir()
    target.mkdir()
    command = overlay(lower, shlex.quote(str(scratch)), shlex.quote(str(target)))
    subprocess.run(["sh", "-c", command], check=True)
    yield lower, target
    assert unmount([str(target)])
    assert unmount([str(scratch)])


def test_libraries_of_two_images_are_two(
    overlays: list[Path], image: Path, another_image: tuple[Path, Path]
) -> None:
    """However alike they are, and though another exporter has probes at the same places of both."""
    lower, target = another_image
    other_kernel, kernel = CaptureKernel(), CaptureKernel()
    others = Attachments(other_kernel.uprobes, in_windows=False)
    attachments = Attachments(kernel.uprobes, in_windows=False)
    try:
        for directory in (image, lower):
            others.attach(directory / LIBRARY, 0)
        uses = [attachments.attach(each / LIBRARY, 0) for each in (*overlays, target)]
        keys = [use.key for use in uses if isinstance(use, LibraryUse)]
        assert keys[0] == keys[1] != keys[2]
        assert len(attachments.libraries) == 2
    finally:
        for each in (others, attachments):
            each.close()
        kernel.close()
        other_kernel.close()


def test_nothing_is_left_of_a_capture(image: Path, tmp_path: Path) -> None:
    """Neither descriptors nor mounts are held by it, however many containers there were."""
    before = sorted(os.listdir("/proc/self/fd"))
    kernel = CaptureKernel()
    attachments = Attachments(kernel.uprobes, in_windows=True)
    with contextlib.ExitStack() as stack:
        for number in range(3):
            copy, scratch, target = (tmp_path / f"{name}{number}" for name in ("l", "s", "t"))
            shutil.copytree(image, copy)
            scratch.mkdir()
            target.mkdir()
            command = overlay(copy, shlex.quote(str(scratch)), shlex.quote(str(target)))
            subprocess.run(["sh", "-c", command], check=True)
            stack.callback(unmount, ["-l", str(scratch)])
            stack.callback(unmount, ["-l", str(target)])
            attachments.attach(target / LIBRARY, 0)
        assert len(attachments.libraries) == 3
        attachments.close()
        assert all(unmount([str(tmp_path / f"t{number}")]) for number in range(3))
    kernel.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
