"""Starting the programs that launch in a loop, and telling them how often."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.fakes.build import build_fakes, fake_environment

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = Path(__file__).parent / ".build"


class Launcher:
    """A running loop."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def launch(self, count: int) -> int:
        """Launch `count` times; the nanoseconds that took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the target ended")
        return int(answer)


@contextlib.contextmanager
def launcher(*command: str) -> Iterator[Launcher]:
    """Run a loop on the fake driver; it ends with its standard input."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=fake_environment(build_fakes()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Launcher(process)


def python_loop(depth: int, *options: str) -> tuple[str, ...]:
    """Command of the loop with `depth` Python frames."""
    return (sys.executable, "-m", "tests.benchmarks.launch_loop", str(depth), *options)


def compiled_loop() -> tuple[str, ...]:
    """Command of the loop without an interpreter, which is built first."""
    return compile_target("launch_loop")


def deep_loop(depth: int, frame_bytes: int = 0) -> tuple[str, ...]:
    """The same, called through `depth` functions without frame pointers, each with so many bytes more on the stack."""
    options = (
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
        f"-DFRAME_BYTES={frame_bytes}",
    )
    return (*compile_target("launch_loop", f"deep_loop_{frame_bytes}", options), str(depth))


def compile_target(
    name: str, program_name: str = "", options: tuple[str, ...] = ("-fno-omit-frame-pointer",)
) -> tuple[str, ...]:
    """Build a C program of this directory on the fake driver; its command."""
    fakes = build_fakes()
    BUILD.mkdir(exist_ok=True)
    (BUILD / ".gitignore").write_text("*\n", encoding="utf-8")
    program = BUILD / (program_name or name)
    source = Path(__file__).with_name(f"{name}.c")
    libraries = (f"-L{fakes}", "-l:libfake_app.so", "-l:libcuda.so.1")
    subprocess.run(
        ["cc", "-std=c11", "-O2", *options, "-o", program, source, *libraries],
        check=True,
    )
    return (str(program),)
