"""Target program: GPU work whose cost is known, one case after the other, each with its truth as a line of JSON.

Usage: python -m tests.integration.gpu.app_cases [--pause SECONDS] CASE [CASE ...]

A line has `case`, `start_ns` and `end_ns` (CLOCK_MONOTONIC), and what the program itself measured. Between cases
the device is idle for 50 ms or what --pause says, so that a recording can be cut.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.gpu_workloads import Yardstick, make_decode, make_graph, make_train

Truth = dict[str, Any]
PAUSE_S = 0.05
STEPS = 20
STEP_MS = 4.0
"""Device time of a step of those cases that are about what the CPU does meanwhile."""
SLEEP_S = 0.005
COPY_BYTES = 64 << 20


class Device:
    """A kernel that lasts as long as asked for."""

    def __init__(self) -> None:
        self._cycles_per_ms = 1_000_000.0
        self.spin(1)
        torch.cuda.synchronize()
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.spin(10)
            end.record()
            end.synchronize()
            self._cycles_per_ms *= 10 / begin.elapsed_time(end)

    def spin(self, duration_ms: float) -> None:
        """Launch it on the current stream."""
        torch.cuda._sleep(int(duration_ms * self._cycles_per_ms))


def clean(device: Device) -> Truth:
    """Nothing to find: large kernels one behind the other, and one wait at the end."""
    for _ in range(STEPS):
        device.spin(STEP_MS)
    torch.cuda.synchronize()
    return {"gpu_time_ns": int(STEPS * STEP_MS * 1e6)}


def item(device: Device) -> Truth:
    """A wait in every step: the CPU waits while the device works."""
    total = torch.zeros(1, device="cuda")
    waited_ns = 0
    for _ in range(STEPS):
        device.spin(STEP_MS)
        begin_ns = time.monotonic_ns()
        total.item()
        waited_ns += time.monotonic_ns() - begin_ns
    return {"waited_ns": waited_ns, "waits": STEPS}


def unpinned(_device: Device) -> Truth:
    """Copies from memory that is not pinned, asked to be asynchronous."""
    host = torch.ones(COPY_BYTES // 4)
    waited_ns = 0
    for _ in range(STEPS):
        begin_ns = time.monotonic_ns()
        host.to("cuda", non_blocking=True)
        waited_ns += time.monotonic_ns() - begin_ns
    torch.cuda.synchronize()
    return {"waited_ns": waited_ns, "copies": STEPS, "bytes": STEPS * COPY_BYTES}


def pinned(_device: Device) -> Truth:
    """The same from pinned memory."""
    host = torch.ones(COPY_BYTES // 4).pin_memory()
    for _ in range(STEPS):
        host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return {"copies": STEPS, "bytes": STEPS * COPY_BYTES}


def sleep_between(device: Device) -> Truth:
    """5 ms asleep between steps, in which the device has nothing to do."""
    slept_ns = 0
    for _ in range(STEPS):
        device.spin(STEP_MS)
        torch.cuda.synchronize()
        begin_ns = time.monotonic_ns()
        time.sleep(SLEEP_S)
        slept_ns += time.monotonic_ns() - begin_ns
    return {"idle_ns": slept_ns}


def python_between(device: Device) -> Truth:
    """5 ms of Python between steps."""
    worked_ns = 0
    for _ in range(STEPS):
        device.spin(STEP_MS)
        torch.cuda.synchronize()
        begin_ns = time.monotonic_ns()
        spin_in_python(begin_ns + int(SLEEP_S * 1e9))
        worked_ns += time.monotonic_ns() - begin_ns
    return {"idle_ns": worked_ns}


def spin_in_python(until_ns: int) -> int:
    """Count until then."""
    count = 0
    while time.monotonic_ns() < until_ns:
        count += 1
    return count


def back_pressure(device: Device) -> Truth:
    """More launches than the driver's queue holds (1,024): the CPU is held back in the launch."""
    launches = 3_000
    begin_ns = time.monotonic_ns()
    for _ in range(launches):
        device.spin(0.5)
    launched_ns = time.monotonic_ns() - begin_ns
    torch.cuda.synchronize()
    return {"launches": launches, "launching_ns": launched_ns}


def two_streams(device: Device) -> Truth:
    """Kernels of two streams that run at the same time."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(STEPS):
        for stream in streams:
            with torch.cuda.stream(stream):
                device.spin(STEP_MS)
    torch.cuda.synchronize()
    return {"gpu_time_ns": int(2 * STEPS * STEP_MS * 1e6)}


def copy_awaited_by_event(device: Device) -> Truth:
    """A copy on a second stream, which the first one awaits through an event."""
    copying = torch.cuda.Stream()
    host = torch.ones(COPY_BYTES // 4).pin_memory()
    target = torch.empty(COPY_BYTES // 4, device="cuda")
    for _ in range(STEPS):
        with torch.cuda.stream(copying):
            target.copy_(host, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        torch.cuda.current_stream().wait_event(copied)
        device.spin(0.5)
        copying.wait_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    return {"copies": STEPS, "bytes": STEPS * COPY_BYTES}


def inference(_device: Device) -> Truth:
    """A small model, a request at a time: copy in, run, copy out."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(6))
    ).cuda()
    requests = 60
    with torch.inference_mode():
        for _ in range(requests):
            model(torch.randn(16, 1024).cuda()).cpu()
    return {"requests": requests}


def _stepped(
    make: Callable[[Yardstick], Callable[[], None]], steps: int
) -> Callable[[Device], Truth]:
    def run(_device: Device) -> Truth:
        step = make(lambda: None)
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return {"steps": steps}

    return run


CASES: dict[str, Callable[[Device], Truth]] = {
    "clean": clean,
    "item": item,
    "unpinned": unpinned,
    "pinned": pinned,
    "sleep_between": sleep_between,
    "python_between": python_between,
    "back_pressure": back_pressure,
    "two_streams": two_streams,
    "copy_awaited_by_event": copy_awaited_by_event,
    "inference": inference,
    "train": _stepped(make_train, 40),
    "decode": _stepped(make_decode, 20),
    "graph": _stepped(make_graph, 50),
}


def main() -> None:
    """Run the cases in the order given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds before each case")
    options = parser.parse_args()
    device = Device()
    for name in options.cases:
        torch.cuda.synchronize()
        time.sleep(options.pause)
        start_ns = time.monotonic_ns()
        truth = CASES[name](device)
        line = {
            "case": name,
            "pid": os.getpid(),
            "start_ns": start_ns,
            "end_ns": time.monotonic_ns(),
        }
        print(json.dumps({**line, **truth}), flush=True)


if __name__ == "__main__":
    main()
