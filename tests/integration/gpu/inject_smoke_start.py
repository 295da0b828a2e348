"""Programs that launch at once, many at the same time, with and without a window from the start.

    make native && python -m tests.integration.gpu.inject_smoke_start [PROGRAMS]

Each line of output is a JSON object of one program:

* `kernels_per_launch`: kernels that were recorded, of those that torch.profiler counts in the same program.
* `apis_per_kernel`: executions with a launch record, of all.
* `opened`, `closed`: the windows. `lease` is the race of a lease with cuInit and the first context (without
  OTEL_GPUFLAME_INJECT_START), `start` a window from the start whose lease comes as early, `alone` one without any
  lease, `short` the same in a program that ends at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete
from tests.integration.inject.region import NoRegionError, Region

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_inject.so"
APP = [sys.executable, str(Path(__file__).with_name("inject_smoke_start_app.py"))]
PROGRAMS = 6
LIMIT_S = 120.0
LOOK_S = 0.0005
GENERATION = 1
LEASED = ("lease", "start")
EXECUTIONS = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)


def environment(way: str) -> dict[str, str]:
    """Of a program that is recorded that way."""
    values = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_INJECTION64_PATH": str(LIBRARY)}
    return values if way == "lease" else {**values, "OTEL_GPUFLAME_INJECT_START": "1"}


def wanted_kernels() -> int:
    """What torch.profiler counts, without our library."""
    values = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*APP, "count"], env=values, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1])["kernels"])


def made_region(pid: int) -> Region | None:
    """None: not yet."""
    try:
        return Region(pid)
    except (NoRegionError, OSError, ValueError):
        return None


def region_of(process: subprocess.Popen[str]) -> Region:
    """As soon as the library has made it. Raises TimeoutError when it makes none."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        region = made_region(process.pid)
        if region is not None:
            return region
        time.sleep(LOOK_S)
    raise TimeoutError("no region")


def facts(records: NDArray[np.void], wanted: int) -> dict[str, Any]:
    """What was recorded, as in the lines of output."""
    kinds = {kind: records[records["kind"] == kind] for kind in GpuKind}
    executions = records[np.isin(records["kind"], EXECUTIONS)]
    has_api = np.isin(executions["correlation_id"], kinds[GpuKind.API]["correlation_id"])
    kernels, opened = kinds[GpuKind.KERNEL], kinds[GpuKind.WINDOW_OPEN]
    cbids, counts = np.unique(kinds[GpuKind.API]["detail"], return_counts=True)
    return {
        "wanted": wanted,
        "kernels": len(kernels),
        "kernels_per_launch": len(kernels) / wanted,
        "copies": len(kinds[GpuKind.COPY]),
        "sets": len(kinds[GpuKind.SET]),
        "apis": len(kinds[GpuKind.API]),
        "cbids": dict(zip(cbids.tolist(), counts.tolist(), strict=True)),
        "apis_per_kernel": float(has_api.mean()) if len(executions) else 0.0,
        "opened": len(opened),
        "open_ms": ((opened["end_ns"] - opened["start_ns"]) / 1e6).tolist(),
        "closed": [Incomplete(int(d)).name for d in kinds[GpuKind.WINDOW_CLOSE]["detail"]],
    }


def whole_windows(way: str) -> list[list[str]]:
    """How the windows of a program may end of which everything was recorded.

    A lease comes while the first context is being made: that window is given up, and the next one has it all.
    """
    whole = [["COMPLETE"]]
    return [*whole, ["NEW_CONTEXT", "COMPLETE"]] if way == "lease" else whole


def record(way: str, number: int, wanted: int) -> None:
    """One program, and its line."""
    argument = "end" if way == "short" else "wait"
    process = subprocess.Popen(
        [*APP, argument],
        env=environment(way),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line: dict[str, Any] = {"way": way, "program": number}
    try:
        region = region_of(process)
        if way in LEASED:
            region.lend(9, generation=GENERATION)
        assert process.stdout is not None
        process.stdout.readline()
        if way in LEASED:
            region.close_window()
        _, errors = process.communicate(timeout=LIMIT_S)
        found = facts(region.read(), wanted)
        is_whole = found["kernels"] == wanted and found["closed"] in whole_windows(way)
        line |= {"ok": is_whole and errors == "", **found, "stderr": errors[-500:]}
    except (TimeoutError, OSError, subprocess.TimeoutExpired) as error:
        line |= {"ok": False, "error": repr(error)}
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    print(json.dumps(line), flush=True)


def main(programs: int = PROGRAMS) -> None:
    """All programs of one way at once, one way after the other."""
    wanted = wanted_kernels()
    for way in (*LEASED, "alone", "short"):
        threads = [
            threading.Thread(target=record, args=(way, number, wanted))
            for number in range(programs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
