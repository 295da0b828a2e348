"""Target programs under the injected library, on the fake driver and the fake CUPTI."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes.build import build_fakes, fake_environment
from tests.integration.inject.region import Region

HERE = Path(__file__).parent
FINISHED_S = 300.0
ATTEMPTS = 20


def attempts() -> Iterator[int]:
    """Programs to try until one does its part in time, for what the library gives so many seconds only.

    Those are 3 s for a window from the start, 0.5 s at a program's end. Whoever is content leaves the loop.

    Raises:
        TimeoutError: none was in time.
    """
    yield from range(ATTEMPTS)
    raise TimeoutError(f"none of {ATTEMPTS} programs was in time")


def environment(library: Path | None, *, cupti: bool = True, **settings: str) -> dict[str, str]:
    """Environment of a program into which the driver loads our library; None: it does not."""
    fakes = build_fakes()
    injected = {} if library is None else {"CUDA_INJECTION64_PATH": str(library)}
    values = fake_environment(fakes, **injected, **settings)
    if cupti:
        values["OTEL_GPUFLAME_CUPTI"] = str(fakes / "cupti" / "libcupti.so.13")
    return values


class Session:
    """A target program that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = int(self._answer()["pid"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the target has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def region(self) -> Region:
        """Its shared memory."""
        return Region(self.pid)

    def end(self) -> str:
        """Let it end as a program does; what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=FINISHED_S)
        return errors


@contextlib.contextmanager
def session(library: Path | None, *, cupti: bool = True, **settings: str) -> Iterator[Session]:
    """A target program; it must end well and say nothing."""
    command = [sys.executable, str(HERE / "target_app.py")]
    process = subprocess.Popen(
        command,
        env=environment(library, cupti=cupti, **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield (running := Session(process))
        if process.poll() is None:
            assert running.end() == ""
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
