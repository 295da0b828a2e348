"""What a launch costs with the injected library in the process, dormant, and without it; and the end of the process.

    make native && python -m tests.integration.gpu.launch_cost [--build] [--pairs N]

Processes of both kinds alternate, since processors change their speed by a tenth from process to process; each pair
gives one difference of its fastest blocks. `--build` only compiles the program, for a machine without a compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from tests.integration.gpu.smoke_app import LIBRARY

SOURCE: Final = Path(__file__).with_suffix(".c")
PROGRAM: Final = LIBRARY.with_name("launch_cost")
BLOCKS: Final = 20
LAUNCHES: Final = 10_000
LIMIT_S: Final = 60.0


def build() -> Path:
    """The program, compiled if it is older than its source."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        # Calls go through pointers without a prototype, which C23 no longer has.
        command = ["cc", "-std=gnu17", "-O2", "-o", str(PROGRAM), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return PROGRAM


def measure(program: Path, library: Path | None, **settings: str) -> dict[str, float]:
    """One process: ns of a launch in its fastest block and its median one, seconds from its end of work to its end."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_INJECTION64_PATH"} | settings
    if library is not None:
        environment["CUDA_INJECTION64_PATH"] = str(library)
    command = [str(program), str(BLOCKS), str(LAUNCHES)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    ended_ns = time.monotonic_ns()
    if done.returncode or done.stderr:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr[-1000:]}")
    *blocks, finished_ns = done.stdout.split()
    values = sorted(map(float, blocks))
    return {
        "fastest_ns": values[0],
        "median_ns": statistics.median(values),
        "exit_s": (ended_ns - int(finished_ns)) / 1e9,
    }


def run(pairs: int) -> dict[str, Any]:
    """All pairs, and a program that ends in a window."""
    program = build()
    without: list[dict[str, Any]] = []
    dormant: list[dict[str, Any]] = []
    for number in range(pairs):
        # One has a warm machine, the other has not: in turns.
        order = (None, LIBRARY) if number % 2 else (LIBRARY, None)
        for library in order:
            found = measure(program, library)
            (without if library is None else dormant).append(found)
    differences = sorted(
        each["fastest_ns"] - other["fastest_ns"]
        for each, other in zip(dormant, without, strict=True)
    )
    captured = measure(program, LIBRARY, OTEL_GPUFLAME_INJECT_START="1")
    return {
        "pairs": pairs,
        "launches_each": BLOCKS * LAUNCHES,
        "without_ns": statistics.median(each["fastest_ns"] for each in without),
        "dormant_ns": statistics.median(each["fastest_ns"] for each in dormant),
        "difference_ns": statistics.median(differences),
        "differences_ns": differences,
        "exit_s_without": max(each["exit_s"] for each in without),
        "exit_s_dormant": max(each["exit_s"] for each in dormant),
        "exit_s_in_a_window": captured["exit_s"],
        "ok": max(each["exit_s"] for each in (*dormant, captured)) < 1,
        "all": {"without": without, "dormant": dormant, "captured": captured},
    }


def main() -> None:
    """Build, or measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    if options.build:
        print(build())
        return
    print(json.dumps(run(options.pairs)), flush=True)


if __name__ == "__main__":
    main()
