"""Target program: cases under torch.profiler, and what that saw, a line of JSON each.

Usage: python -m tests.integration.gpu.app_profiled CASE [CASE ...] [--windows]

A line has the number and the device time of kernels, copies and sets, and the ten kernels that took most. With
`--windows`, each case runs three times, the second time under torch.profiler: what else looks at the device has to
stand back meanwhile, and come back.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.integration.gpu.app_cases import CASES, Device

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
PAUSE_S = 0.8
"""A recorder takes the profiler for gone 0.25 s after it has flushed, and opens a window then."""


def profile(case: str, device: Device) -> dict[str, Any]:
    """Run the case under torch.profiler; counts and nanoseconds by category and by kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    start_ns = time.monotonic_ns()
    with torch.profiler.profile(activities=activities) as profiler:
        CASES[case](device)
    end_ns = time.monotonic_ns()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    counts: Counter[str] = Counter()
    times_us: Counter[str] = Counter()
    kernels_us: Counter[str] = Counter()
    for event in events:
        category = event.get("cat")
        if event.get("ph") != "X" or category not in CATEGORIES:
            continue
        counts[category] += 1
        times_us[category] += event["dur"]
        if category == "kernel":
            kernels_us[event["name"]] += event["dur"]
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "counts": dict(counts),
        "times_us": dict(times_us),
        "kernels_us": dict(kernels_us.most_common(10)),
    }


def run(case: str, device: Device) -> dict[str, Any]:
    """Run the case with no profiler of its own."""
    start_ns = time.monotonic_ns()
    CASES[case](device)
    return {"start_ns": start_ns, "end_ns": time.monotonic_ns()}


def main() -> None:
    """Profile the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    parser.add_argument("--windows", action="store_true")
    options = parser.parse_args()
    device = Device()
    turns = ("before", "profiled", "after") if options.windows else ("profiled",)
    for case in options.cases:
        line: dict[str, Any] = {"pid": os.getpid(), "case": case}
        for turn in turns:
            line[turn] = profile(case, device) if turn == "profiled" else run(case, device)
            torch.cuda.synchronize()
            time.sleep(PAUSE_S)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
