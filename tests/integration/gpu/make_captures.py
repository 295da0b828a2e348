"""Records the golden captures, with what torch.profiler and the programs themselves say beside them.

Usage: python -m tests.integration.gpu.make_captures OUT [--seconds N] [STEP ...]

OUT gets NAME.ogfcap, NAME.jsonl (the program's own truth) and NAME.log for each step, and profiled.jsonl. Steps go
on until the seconds are used up; a step that fails does not stop the others. Needs root, an NVIDIA GPU and torch.
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
STEPS: Final[dict[str, tuple[bool, tuple[str, ...]]]] = {
    "truths": (True, (_CASES, *TRUTHS)),
    "train": (True, (_CASES, "train")),
    "graph": (True, (_CASES, "graph")),
    "profiled": (False, (_PROFILED, "train", "decode", "graph")),
    "beside_profiler": (True, (_PROFILED, "train", "--windows")),
    "decode": (True, (_CASES, "decode")),
    "inference": (True, (_CASES, "inference")),
}
"""Step -> (whether it is recorded, module and arguments of the program). The most telling ones first."""
_STEP_S: Final = 60.0


def run(out: Path, name: str, seconds: float) -> str:
    """One step; what became of it."""
    recorded, program = STEPS[name]
    command = [sys.executable, "-m", *program]
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
    return f"exit {code} after {time.monotonic() - began_s:.1f} s"


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
        left_s = min(until_s - time.monotonic(), _STEP_S)
        print(
            f"{name}: {run(options.out, name, left_s) if left_s > 1 else 'no time left'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
