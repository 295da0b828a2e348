"""Records the golden captures, with what torch.profiler and the programs themselves say beside them.

Usage: python -m tests.integration.gpu.make_captures OUT [--seconds N] [STEP ...]

OUT gets NAME.ogfcap, NAME.jsonl (the program's own truth) and NAME.log for each step, and profiled.jsonl. Steps go
on until the seconds are used up; a step that fails does not stop the others, and the end of its log is printed. Needs
root, an NVIDIA GPU and torch. Those of `spans_recorded` write their traces (NAME.json) too, and compare themselves;
the service needs fastapi, uvicorn and opentelemetry-instrumentation-fastapi.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

TRUTHS: Final = (
    "clean",
    "item",
    "unpinned",
    "pinned",
    "sleep_between",
    "python_between",
    "back_pressure",
    "two_streams",
    "copy_awaited_by_event",
)
_CASES: Final = "tests.integration.gpu.app_cases"
_PROFILED: Final = "tests.integration.gpu.app_profiled"
_SPANS: Final = "tests.integration.gpu.spans_recorded"
_OUT: Final = "OUT"
"""In arguments: the folder."""
_INSTALL: Final = ("--install", "/srv")
"""Paths that may be shown: these are bundled."""
STEPS: Final[dict[str, tuple[bool, tuple[str, ...]]]] = {
    "truths": (True, (_CASES, *TRUTHS)),
    "train": (True, (_CASES, "train")),
    "graph": (True, (_CASES, "graph")),
    "profiled": (False, (_PROFILED, "train", "decode", "graph")),
    "beside_profiler": (True, (_PROFILED, "train", "--windows")),
    "decode": (True, (_CASES, "decode")),
    "inference": (True, (_CASES, "inference")),
    "service": (False, (_SPANS, _OUT, "service", *_INSTALL)),
    "service_attached": (False, (_SPANS, _OUT, "service_attached", *_INSTALL)),
    "train_spans": (False, (_SPANS, _OUT, "train_spans", *_INSTALL)),
}
"""Step -> (whether we record it, module and arguments of the program). The most telling ones first."""
_STEP_S: Final = 60.0
_SPANS_STEP_S: Final = 180.0
"""Loading a model, recording, and comparing each span."""
_LOG_LINES: Final = 25


def run(out: Path, name: str, seconds: float) -> str:
    """One step; what became of it."""
    recorded, program = STEPS[name]
    command = [sys.executable, "-m", *(str(out) if part == _OUT else part for part in program)]
    if recorded:
        capture = str(out / f"{name}.ogfcap")
        command = [sys.executable, "-m", "otel_gpuflame", "record", "-o", capture, "--", *command]
    began_s = time.monotonic()
    with (out / f"{name}.jsonl").open("w") as truth, (out / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(
                command, stdout=truth, stderr=log, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return f"not within {seconds:.0f} s"
    outcome = f"exit {code} after {time.monotonic() - began_s:.1f} s"
    if code:
        said = (out / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join([outcome, *said[-_LOG_LINES:]])
    return outcome


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are: {', '.join(STEPS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + options.seconds
    for name in options.steps or STEPS:
        limit_s = _SPANS_STEP_S if STEPS[name][1][0] == _SPANS else _STEP_S
        left_s = min(until_s - time.monotonic(), limit_s)
        print(
            f"{name}: {run(options.out, name, left_s) if left_s > 1 else 'no time left'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
