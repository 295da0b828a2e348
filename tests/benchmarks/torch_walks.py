"""What the stack of a launch costs in PyTorch: cut for want of tables, walked each time, and remembered.

Usage (root): OGF_TORCH_PYTHON=… python -m tests.benchmarks.torch_walks

Needs an interpreter with PyTorch (CPU is enough), ninja and a C++ compiler. Launches go to the fake driver, from
operators behind the dispatcher and from nodes of the autograd engine. Printed: nanoseconds in our program a launch,
without the trap; the least and the median of repetitions.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.kernel import WALK_MEMORY
from otel_gpuflame.events import wire
from otel_gpuflame.events.wire import NativeState
from tests.fakes.build import ROOT, build_fakes, fake_environment
from tests.integration.bpf.session import Running, running
from tests.integration.bpf.unwinding import RawCapture, raw_capture

STEPS: Final = 30
REPEATED: Final = 9
MODES: Final = {"remembered": "", "walked": "off", "checked": "check"}
"""`checked` does both, and must find no difference."""


class Trainer:
    """The target, told to train."""

    def __init__(self, target: Running, capture: RawCapture) -> None:
        self._target, self._capture, self._heard = target, capture, 0

    def train(self, steps: int) -> int:
        """Train so many steps; kernels launched."""
        assert self._target.process.stdin is not None
        self._target.process.stdin.write(f"{steps}\n")
        self._target.process.stdin.flush()
        self._heard += 1
        return int(self._target.truth(self._heard)["launches"])

    def costs_ns(self) -> list[float]:
        """Nanoseconds a launch, each repetition."""
        return [self._cost_ns() for _ in range(REPEATED)]

    def _cost_ns(self) -> float:
        kernel, pid = self._capture.kernel, self._target.process.pid
        kernel.costs.set(pid.to_bytes(4, "little"), bytes(wire.COST.itemsize))
        launches = self.train(STEPS)
        cost = kernel.cost_of(pid)
        if cost is None or cost[0] != launches:
            raise RuntimeError(f"{cost} hits instead of {launches}")
        return cost[1] / launches


def measure(mode: str, build: Path) -> None:
    """Print what one way of walking costs."""
    environment = {**fake_environment(build_fakes()), "PYTHONPATH": str(ROOT)}
    command = [os.environ["OGF_TORCH_PYTHON"], "-m", "tests.benchmarks.torch_walks_target"]
    os.environ[WALK_MEMORY] = MODES[mode]
    with running([*command, str(build)], environment) as target:
        target.truth()
        with raw_capture(target.process.pid) as capture:
            trainer = Trainer(target, capture)
            trainer.train(2)
            process = capture.stacks()[0].process
            _say("cut", trainer.costs_ns())
            begin_s = time.process_time()
            capture.feed(process)
            made_s = time.process_time() - begin_s
            trainer.train(2)
            stacks = capture.stacks()
            if any(stack.native_state != NativeState.ROOT for stack in stacks):
                raise RuntimeError("stacks are not whole")
            _say(mode, trainer.costs_ns())
            depths = sorted(len(stack.native) for stack in stacks)
            print(
                f"  {len(stacks)} stacks, {len({s.native for s in stacks})} native ones, {depths}"
            )
            print(f"  tables: {capture.tables.files.bytes / 1e6:.0f} MB in {made_s:.2f} s of CPU")
            walks = {c.outcome: c.count for c in capture.kernel.counters() if c.kind == "walk"}
            print(f"  {walks}")
            if "wrong" in walks:
                raise RuntimeError("what is remembered is not what walking finds")
        target.process.kill()


def _say(name: str, values_ns: list[float]) -> None:
    least, median = min(values_ns), statistics.median(values_ns)
    print(f"{name:10} at least {least:6,.0f} ns, median {median:6,.0f} ns", flush=True)


def main() -> None:
    """Measure and print."""
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as build:
        for mode in MODES:
            measure(mode, Path(build))


if __name__ == "__main__":
    main()
