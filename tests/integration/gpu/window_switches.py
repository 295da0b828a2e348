"""Many windows in a program that trains, and how long it then takes to end in one, with the library and without.

make native && python -m tests.integration.gpu.window_switches [--windows N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete
from tests.integration.gpu.smoke_app import App
from tests.integration.inject.region import Region

WINDOWS: Final = 200
OPEN_S: Final = 0.01
FIRST_GENERATION: Final = 1_000


@contextlib.contextmanager
def app(mode: str | None) -> Iterator[App]:
    """The target program; it does not outlive the block."""
    target = App(mode)
    try:
        target.answer()
        yield target
    finally:
        if target.process.poll() is None:
            target.process.kill()
            target.process.communicate()


def switch(target: App, region: Region, windows: int) -> dict[str, Any]:
    """Windows one after the other, while it trains."""
    assert target.process.stdin is not None
    opening_ms, closing_ms, records = [], [], []
    # Steps go on for longer than all windows take; what is left of them is waited for.
    seconds = windows * (OPEN_S + 0.03)
    target.process.stdin.write(json.dumps({"do": "steps_for", "seconds": seconds}) + "\n")
    target.process.stdin.flush()
    for number in range(windows):
        begin_s = time.monotonic()
        region.open_window(FIRST_GENERATION + number)
        opening_ms.append((time.monotonic() - begin_s) * 1e3)
        time.sleep(OPEN_S)
        begin_s = time.monotonic()
        region.close_window()
        closing_ms.append((time.monotonic() - begin_s) * 1e3)
        records.append(region.read())
    answer = target.answer()
    rows = np.concatenate(records)
    closed = rows[rows["kind"] == GpuKind.WINDOW_CLOSE]["detail"].tolist()
    reasons = Counter(Incomplete(reason).name for reason in closed)
    return {
        "ok": reasons == {"COMPLETE": windows},
        "windows": windows,
        "closed": dict(reasons),
        "kernels": int((rows["kind"] == GpuKind.KERNEL).sum()),
        "steps": answer["steps"],
        "open_ms": _quantiles(opening_ms),
        "close_ms": _quantiles(closing_ms),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "max": max(values)}


def run(windows: int) -> dict[str, Any]:
    """Both programs."""
    with app(None) as target:
        target.do("steps", count=20)
        without_s, _, _ = target.end()
    with app("window") as target:
        region = Region(target.pid)
        found = switch(target, region, windows)
        region.open_window(FIRST_GENERATION + windows)
        target.do("steps", count=20)
        in_window_s, status, errors = target.end()
    found["exit"] = {
        "without_s": without_s,
        "in_a_window_s": in_window_s,
        "more_s": in_window_s - without_s,
        "status": status,
        "stderr": errors[-500:],
    }
    found["ok"] &= status == 0 and in_window_s - without_s < 1
    return found


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    print(json.dumps(run(parser.parse_args().windows)), flush=True)


if __name__ == "__main__":
    main()
