"""`env`: what a program must be started with."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.capture.cupti import inject
from otel_gpuflame.cli import env as command
from tests.unit.cli.captures import run


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged library, in a directory with a name that needs quotes; the layer beside it."""
    path = tmp_path / 'it\'s 100% "here"' / "libogf_inject.so"
    path.parent.mkdir()
    path.write_bytes(b"library")
    monkeypatch.setattr(inject, "LIBRARY", path)
    monkeypatch.setattr(inject, "LAYER", path.with_name("libogf_opencl.so"))
    inject.LAYER.write_bytes(b"layer")
    return path


@pytest.mark.parametrize("other_layers", ["", "/opt/other.so"])
def test_a_shell_takes_the_lines_as_they_are(library: Path, other_layers: str) -> None:
    """Whatever is in the path; other layers stay, behind ours."""
    script = run("env").stdout + 'printf "%s\\n" "$CUDA_INJECTION64_PATH" "$OPENCL_LAYERS"'
    shown = subprocess.run(
        ["sh", "-euc", script],
        env={"OPENCL_LAYERS": other_layers} if other_layers else {},
        capture_output=True,
        text=True,
        check=True,
    )
    layers = ":".join(filter(None, [str(inject.LAYER), other_layers]))
    assert shown.stdout.splitlines() == [str(library), layers]


def test_systemd_takes_the_drop_in_as_it_is(library: Path, tmp_path: Path) -> None:
    """As systemd itself reads it."""
    text = run("env", "--systemd").stdout
    head, *lines = text.splitlines()
    assert head == "[Service]"
    values = [line.removeprefix("Environment=") for line in lines]
    # Inside double quotes, the rules of systemd for \ and " are those of shells; % is written twice.
    assert [shlex.split(value) for value in values] == [
        [f"CUDA_INJECTION64_PATH={str(library).replace('%', '%%')}"],
        [f"OPENCL_LAYERS={str(inject.LAYER).replace('%', '%%')}"],
    ]
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "trainer.service"
        unit.write_text(f"{text}ExecStart=/bin/true\n")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Environment" not in done.stderr


def test_the_libraries_are_copied_whole(library: Path, tmp_path: Path) -> None:
    """Into a directory that need not be there, over what was, readable by all, and without leaving anything else."""
    volume = tmp_path / "a" / "volume"
    for content in (b"first", b"second"):
        library.write_bytes(content)
        assert run("env", "--copy-to", str(volume)).exit_code == 0
        copy, layer = sorted(volume.iterdir())
        assert (copy.name, copy.read_bytes()) == ("libogf_inject.so", content)
        assert (layer.name, layer.read_bytes()) == ("libogf_opencl.so", b"layer")
        assert copy.stat().st_mode & 0o777 == layer.stat().st_mode & 0o777 == 0o555


def test_a_directory_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left behind."""

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(command.shutil, "copyfile", full)
    result = run("env", "--copy-to", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: cannot write {tmp_path}/libogf_inject.so: No space left on device\n"
    )


@pytest.mark.parametrize("name", ["libogf_inject.so", "libogf_opencl.so"])
@pytest.mark.parametrize("arguments", [(), ("--systemd",), ("--copy-to", "{tmp}")])
def test_a_package_without_a_library_says_so(
    arguments: tuple[str, ...], name: str, library: Path, tmp_path: Path
) -> None:
    """With what to do about it."""
    library.with_name(name).unlink()
    arguments = tuple(each.format(tmp=tmp_path) for each in arguments)
    result = run("env", *arguments)
    assert result.exit_code == 3
    assert "make native" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--k8s",), "--k8s needs --container"),
        (("--k8s", "--container", "a b"), "'a b' is no name of a container"),
        (("--k8s", "--container", "x: y"), "is no name of a container"),
        (("--k8s", "--container", "otel-gpuflame"), "is the name of the init container"),
        (("--k8s", "--container", "x", "--image", 'a"b'), "is no name of an image"),
        (("--container", "x"), "without --k8s would do nothing"),
        (("--image", "x"), "without --k8s would do nothing"),
        (("--systemd", "--k8s"), "give one of"),
        (("--copy-to", "/etc/passwd"), "is a file"),
        (("--copy-to", "/proc/none"), "cannot write /proc/none/libogf_inject.so: No such file"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], message: str) -> None:
    """Nothing is printed that could be applied."""
    result = run("env", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
