"""`otel-gpuflame record` with a clock at the places between its phases; bench_start runs it.

Run: python -m tests.benchmarks.start_probe REPORT record ARGUMENT... — writes CLOCK_MONOTONIC nanoseconds by phase.
"""

from __future__ import annotations

import time

_ENTERED_NS = time.monotonic_ns()

import json  # noqa: E402 - the clock above must come before any import
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


def main() -> None:
    """Import the command line, wrap the ends of its phases, run it."""
    from otel_gpuflame.capture.bpf.kernel import CaptureKernel  # noqa: PLC0415 - importing is one of the phases
    from otel_gpuflame.capture.command import StoppedCommand  # noqa: PLC0415
    from otel_gpuflame.capture.live import LiveCapture  # noqa: PLC0415
    from otel_gpuflame.cli.main import main as run  # noqa: PLC0415
    from otel_gpuflame.events.records import Calls  # noqa: PLC0415

    report = Path(sys.argv[1])
    times = {"entered": _ENTERED_NS, "imported": time.monotonic_ns()}

    def clocked(owner: type, method: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            times.setdefault(f"{method} begins", time.monotonic_ns())
            result = original(*arguments, **options)
            times.setdefault(f"{method} ends", time.monotonic_ns())
            calls = next((e for e in _events(result) if isinstance(e, Calls)), None)
            if calls is not None and "available" not in times:
                times["available"] = time.monotonic_ns()
                times["called"] = int(calls.rows["start_ns"].min())
                _write(report, times)
            return result

        setattr(owner, method, wrapped)

    clocked(CaptureKernel, "_load")
    clocked(LiveCapture, "__enter__")
    clocked(StoppedCommand, "release")
    clocked(LiveCapture, "step")
    sys.argv[1:] = sys.argv[2:]
    run()


def _write(report: Path, times: dict[str, int]) -> None:
    """At once or not at all: somebody waits for the file."""
    draft = report.with_suffix(".draft")
    draft.write_text(json.dumps(times))
    draft.rename(report)


def _events(result: object) -> list[object]:
    return result if isinstance(result, list) else []


if __name__ == "__main__":
    main()
