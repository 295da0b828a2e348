# SPDX-License-Identifier: Apache-2.0
"""Builds the tests' OpenTelemetry Collector and Jaeger from Go modules, once for each state of their sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_gpuflame.errors import OtelGpuflameError
from tests.tiers import forced_tiers

BUILD_TIMEOUT_S = 1500.0
FIRST_GO_THAT_UPGRADES = (1, 21)
_PROGRESS_PACKAGES = 100


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A Go module with one main package; `name` is that of the executable, `title` what people call it."""

    name: str
    title: str
    source_dir: Path


COLLECTOR = GoProgram("otelcol", "Collector", Path(__file__).parent / "otelcol")
"""Some 970 packages: about two minutes on two cores when Go's cache is cold, after the download."""
JAEGER = GoProgram("jaeger", "Jaeger", Path(__file__).parent / "jaeger")
"""545 packages, 81 s of CPU time. All of Jaeger is 2,325, 450 s, and 1.3 GB of modules."""


class CollectorError(OtelGpuflameError):
    """The Collector could not be built, started or stopped; the message holds its own words."""


def find_go() -> Path | None:
    """A usable `go` command: first on PATH, then where go.dev's archive installs it; None if there is none.

    Usable is 1.21 or newer: it fetches the version that go.mod asks for by itself. Debian 12's is older.
    """
    on_path = shutil.which("go")
    for candidate in filter(None, (on_path, "/usr/local/go/bin/go")):
        version = _go_version(Path(candidate))
        if version is not None and version >= FIRST_GO_THAT_UPGRADES:
            return Path(candidate)
    return None


def _go_version(go: Path) -> tuple[int, int] | None:
    try:
        # Outside of any module, so that the command speaks of itself.
        answer = subprocess.run(
            [str(go), "version"], cwd="/", capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def default_cache_dir() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/otel-gpuflame`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "otel-gpuflame"


def cached_binary(cache_dir: Path, program: GoProgram = COLLECTOR) -> Path:
    """Where the build of the present sources belongs; the file may not exist yet."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        content = (program.source_dir / name).read_bytes()
        digest.update(f"{name}:{len(content)}:".encode())
        digest.update(content)
    return cache_dir / f"{program.name}-{digest.hexdigest()[:16]}"


def build_program(program: GoProgram, cache_dir: Path | None = None) -> Path:
    """Build once and return the executable; later calls with the same sources return at once.

    Raises:
        CollectorError: Go is missing or older than go.mod asks for, or the build failed.
    """
    cache = default_cache_dir() if cache_dir is None else cache_dir
    binary = cached_binary(cache, program)
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / f"{program.name}.lock"):
        if not binary.exists():
            _go_build(program, binary)
    return binary


def build_collector(cache_dir: Path | None = None) -> Path:
    """`build_program` for the Collector."""
    return build_program(COLLECTOR, cache_dir)


@contextmanager
def _exclusive(lock_path: Path) -> Iterator[None]:
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go_build(program: GoProgram, binary: Path) -> None:
    go = find_go()
    if go is None:
        raise CollectorError(
            f"cannot build the test {program.title}: no `go` of 1.21 or newer on PATH nor in /usr/local/go/bin. "
            "Install Go 1.26 or newer (https://go.dev/dl), or leave the collector tests out "
            "with `pytest -m 'not collector'`."
        )
    partial = binary.with_suffix(f".partial-{os.getpid()}")
    command = [str(go), "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
    name = program.name
    _say(name, f"building {binary.name} with {go}: one to several minutes when Go's cache is cold")
    started_s = time.monotonic()
    process = subprocess.Popen(
        [*command, "-o", str(partial), "."],
        cwd=program.source_dir,
        # Without cgo the build needs no C compiler.
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(BUILD_TIMEOUT_S, process.kill)
    timer.start()
    try:
        output = _relay_progress(process, name)
        return_code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    took_s = time.monotonic() - started_s
    if return_code != 0:
        partial.unlink(missing_ok=True)
        raise CollectorError(
            f"`go build` in {program.source_dir} ended with {return_code} after {took_s:.0f} s "
            f"(the limit is {BUILD_TIMEOUT_S:.0f} s). Its last lines:\n" + "\n".join(output[-20:])
        )
    partial.rename(binary)
    _say(name, f"built {binary} in {took_s:.0f} s")


def _relay_progress(process: subprocess.Popen[str], name: str) -> list[str]:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line.rstrip())
        if len(lines) % _PROGRESS_PACKAGES == 0:
            _say(name, f"{len(lines)} packages: {lines[-1]}")
    return lines


def _say(name: str, text: str) -> None:
    print(f"[{name}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Before the tests, so that no test's time limit covers a cold build.
    try:
        for each in (COLLECTOR, JAEGER):
            print(build_program(each))
    except CollectorError as error:
        if "collector" in forced_tiers():
            raise
        _say("go", f"the collector tests will be skipped: {error}")
