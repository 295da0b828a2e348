"""What the probe on backward passes costs: nanoseconds inside our program, by the kernel's own count.

Usage (root): python -m tests.benchmarks.backward_passes [--frames N] [OBJECT …]

OBJECT: compiled BPF objects to compare, by default the package's. All run the same passes of the fake engine, in blocks
and in the order A B B A, each attached in its own blocks only. Printed: the least and the median of the blocks of each,
and the median of the differences to the first one within a round. The trap is not in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.attached import LibraryUse
from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf import kernel as kernel_module
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.targets import Targets
from tests.benchmarks.program_statistics import program_statistics
from tests.fakes.build import ROOT, build_fakes, fake_environment
from tests.fakes.torch_engine import LIBRARY
from tests.integration.bpf.session import Running, running

PASSES: Final = 1_000
ROUNDS: Final = 12


class Subject:
    """One object's programs, with the target's library probed while `run` runs."""

    def __init__(self, image: Path, pid: int, library: Path) -> None:
        self._library = library
        chosen = kernel_module.OBJECT
        kernel_module.OBJECT = image  # type: ignore[misc]
        try:
            self.kernel = CaptureKernel()
        finally:
            kernel_module.OBJECT = chosen  # type: ignore[misc]
        # It probes no library by itself.
        self._targets = Targets(self.kernel, Attachments(self.kernel.uprobes, in_windows=False))
        self._targets.add(pid, time.monotonic_ns())
        self._targets.look(time.monotonic_ns())

    def cost_ns(self, target: Running) -> float:
        """Of one pass, over a block of them."""
        attachments = Attachments(self.kernel.uprobes, in_windows=False)
        try:
            use = attachments.attach(self._library, 0, str(self._library))
            if not isinstance(use, LibraryUse):
                raise RuntimeError(f"cannot probe {self._library}")
            run(target, PASSES // 10)
            with program_statistics(self.kernel.object) as count:
                before = count()[Program.BACKWARD.value]
                run(target, PASSES)
                after = count()[Program.BACKWARD.value]
        finally:
            attachments.close()
        if after[0] - before[0] != PASSES:
            raise RuntimeError(f"{after[0] - before[0]} passes seen of {PASSES}")
        return (after[1] - before[1]) / PASSES


def run(target: Running, passes: int) -> None:
    """Have the target make so many."""
    heard = target.lines_said()
    target.go(str(passes))
    target.truth(heard)


def compare(images: Sequence[Path], frames: int) -> None:
    """Measure and print."""
    environment = {**fake_environment(build_fakes()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.benchmarks.backward_passes_target", "--hold"]
    with running([*command, "--frames", str(frames)], environment) as target:
        target.truth()
        target.go()
        library = Path(environment["LD_LIBRARY_PATH"].split(":")[0]) / LIBRARY
        with contextlib.ExitStack() as stack:
            subjects = [Subject(image, target.process.pid, library) for image in images]
            for subject in subjects:
                stack.callback(subject.kernel.close)
            costs: list[list[float]] = [[] for _ in subjects]
            for _ in range(ROUNDS):
                there = [subject.cost_ns(target) for subject in subjects]
                back = [subject.cost_ns(target) for subject in reversed(subjects)][::-1]
                for each, pair in zip(costs, zip(there, back, strict=True), strict=True):
                    each.append(statistics.fmean(pair))
        target.process.kill()
    for image, each in zip(images, costs, strict=True):
        differences = [cost - first for cost, first in zip(each, costs[0], strict=True)]
        print(
            f"{image}: at least {min(each):,.0f} ns, median {statistics.median(each):,.0f} ns; "
            f"less the first {statistics.median(differences):+,.0f} ns "
            f"({min(differences):+,.0f} to {max(differences):+,.0f})"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", nargs="*", type=Path)
    parser.add_argument("--frames", type=int, default=20)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    compare(options.objects or [kernel_module.OBJECT], options.frames)


if __name__ == "__main__":
    main()
