"""From starting `otel-gpuflame record` to the first driver call in Python's hands, phase by phase.

The recorded program is the compiled loop, which makes its first call milliseconds after it may run, and then waits
until that has been delivered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.benchmarks import figures, launching
from tests.benchmarks.figures import Figure, figure
from tests.fakes.build import build_fakes, fake_environment

REPEAT: Final = 8
_LAUNCHES: Final = "1000\n"
_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.01

# Name, from, to. They add up to the whole.
_PHASES: Final = (
    ("interpreter", "started", "entered"),
    ("import", "entered", "imported"),
    ("command line, fork of the command", "imported", "_load begins"),
    ("BPF load", "_load begins", "_load ends"),
    ("tracepoints, rings, symboliser", "_load ends", "__enter__ begins"),
    ("attach, look at the process", "__enter__ begins", "__enter__ ends"),
    ("the program's own: exec until its first call", "__enter__ ends", "called"),
    ("first call until it is delivered", "called", "available"),
    ("total", "started", "available"),
)


def measure() -> list[Figure]:
    """Start several times; milliseconds of each phase."""
    command = launching.compiled_loop()
    runs = [_start(command) for _ in range(REPEAT + 1)]
    # The first one reads everything from disk.
    warm = runs[1:]
    return [
        Figure(name="total, first start", value=_ms(runs[0], "started", "available"), unit="ms"),
        *(figure(name, [_ms(run, a, b) for run in warm], "ms") for name, a, b in _PHASES),
    ]


def _start(command: tuple[str, ...]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "times.json"
        capture = Path(directory) / "start.ogfcap"
        arguments = (str(report), "record", "--quiet", "-o", str(capture), "--", *command)
        started_ns = time.monotonic_ns()
        with subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.start_probe", *arguments],
            cwd=launching.ROOT,
            env=fake_environment(build_fakes()),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            process.stdin.write(_LAUNCHES)
            process.stdin.flush()
            _wait_for(report, process)
            _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"record failed: {errors}")
        times: dict[str, int] = json.loads(report.read_text())
    times["started"] = started_ns
    return times


def _wait_for(report: Path, process: subprocess.Popen[str]) -> None:
    """The report is written when the first call has been delivered."""
    deadline_s = time.monotonic() + _LIMIT_S
    while not report.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            raise RuntimeError(f"no call was delivered: {process.communicate()[1]}")
        time.sleep(_POLL_S)


def _ms(times: dict[str, int], begin: str, end: str) -> float:
    return (times[end] - times[begin]) / 1e6


if __name__ == "__main__":
    figures.main(measure)
