"""From starting `otel-gpuflame record` to the first driver call in Python's hands, phase by phase.

The recorded program is the compiled loop, which makes its first call a millisecond after it may run: what is measured
is ours.
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
_LAUNCHES: Final = b"1000\n"

# Name, from, to. They add up to the whole.
_PHASES: Final = (
    ("interpreter", "started", "entered"),
    ("import", "entered", "imported"),
    ("command line, fork of the command", "imported", "_load begins"),
    ("BPF load", "_load begins", "_load ends"),
    ("tracepoints, rings, symboliser", "_load ends", "__enter__ begins"),
    ("attach, look at the process", "__enter__ begins", "__enter__ ends"),
    ("exec of the command", "__enter__ ends", "release ends"),
    ("program until its first call", "release ends", "called"),
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
        result = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.start_probe", *arguments],
            cwd=launching.ROOT,
            env=fake_environment(build_fakes()),
            input=_LAUNCHES,
            capture_output=True,
            check=False,
        )
        if result.returncode or not report.exists():
            raise RuntimeError(f"record failed: {result.stderr.decode()}")
        times: dict[str, int] = json.loads(report.read_text())
    times["started"] = started_ns
    if "called" not in times:
        raise RuntimeError("no call arrived before the program ended")
    return times


def _ms(times: dict[str, int], begin: str, end: str) -> float:
    return (times[end] - times[begin]) / 1e6


if __name__ == "__main__":
    figures.main(measure)
