"""Builds the GPU doubles and says how a program is started on them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

FAKES = Path(__file__).resolve().parent
ROOT = FAKES.parent.parent
_SOURCE_PATTERNS = (
    "Makefile",
    "cuda/*.[ch]",
    "cuda/*.map",
    "cupti/*.[ch]",
    "app/*.c",
    "torch/*.cpp",
)


class FakeBuildError(RuntimeError):
    """The doubles cannot be built here; the text names the remedy."""


def build_fakes(*, cf_protection: str = "none", frame_pointers: bool = True) -> Path:
    """Build libcuda.so.1, libfake_app.so and libtorch_cpu.so, or find them built from the same sources.

    Args:
        cf_protection: gcc's `-fcf-protection`; `full` makes every function start with endbr64.
        frame_pointers: False leaves only `.eh_frame` to unwind by, as a release build does.

    Returns:
        The directory that holds the libraries.

    Raises:
        FakeBuildError: gcc, g++ or make is missing, or the compiler refused.
    """
    settings = {
        "CF_PROTECTION": cf_protection,
        "FRAME_POINTERS": "yes" if frame_pointers else "no",
    }
    target = _build_root() / _source_hash(settings)
    with _locked(target.with_suffix(".lock")):
        if not (target / "complete").exists():
            _make(target, settings)
            (target / "complete").touch()
    return target


def fake_environment(build_dir: Path, **settings: str) -> dict[str, str]:
    """Environment for a program that shall find the fake driver as it would find the real one.

    Args:
        build_dir: What `build_fakes` returned.
        settings: FAKE_CUDA_* variables; those of the caller's environment are not inherited.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("FAKE_CUDA_")
    }
    return {
        **inherited,
        "LD_LIBRARY_PATH": _prepend(build_dir, inherited.get("LD_LIBRARY_PATH")),
        "PYTHONPATH": _prepend(ROOT, inherited.get("PYTHONPATH")),
        **settings,
    }


def app_command(name: str, *arguments: object) -> list[str]:
    """Command line of a target program: `app_command("app_launch", 1000)`."""
    return [sys.executable, str(FAKES / f"{name}.py"), *map(str, arguments)]


def _prepend(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)


def _build_root() -> Path:
    return Path(os.environ.get("OGF_FAKES_BUILD", FAKES / ".build"))


def _source_hash(settings: Mapping[str, str]) -> str:
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for pattern in _SOURCE_PATTERNS:
        for path in sorted(FAKES.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Several test processes may want the same build at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(target: Path, settings: Mapping[str, str]) -> None:
    for tool in ("gcc", "g++", "make"):
        if shutil.which(tool) is None:
            msg = f"{tool} is needed to build the GPU doubles: apt-get install {tool}"
            raise FakeBuildError(msg)
    assignments = [f"{name}={value}" for name, value in settings.items()]
    command = ["make", "-C", str(FAKES), f"BUILD={target}", *assignments, "all"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        msg = f"building the GPU doubles failed:\n{result.stderr.strip()}"
        raise FakeBuildError(msg)
