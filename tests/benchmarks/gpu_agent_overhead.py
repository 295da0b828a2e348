"""What the agent costs a GPU program: blocks with and without it, in turn, inside one run of the program.

Usage (root, NVIDIA GPU, PyTorch): python -m tests.benchmarks.gpu_agent_overhead train --pairs 20 --block 5

The agent runs all the time and is switched by SIGUSR2 (on) and SIGUSR1 (off) in the order off on on off …; the
throughput of each on block is divided by the mean of its off neighbours. Printed: median ratio, its 95 % interval by
bootstrap over blocks, range. The first 0.7 s of each block are left out: loading and attaching are not steady state,
and `--keep-start` shows them. An OTLP receiver on loopback takes the profiles.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.integration.collector.sink import OtlpSink

ROOT = Path(__file__).parents[2]
NS = 1_000_000_000
SETTLE_NS = 7 * NS // 10


class Progress:
    """Reads the program's lines in a thread: it must never wait for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.points: list[tuple[int, int]] = []
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            point = json.loads(line)
            self.points.append((point["t"], point["n"]))

    def rate(self, start_ns: int, end_ns: int) -> float:
        """Iterations a second between two times."""
        inside = [point for point in self.points if start_ns <= point[0] <= end_ns]
        (t0, n0), (t1, n1) = inside[0], inside[-1]
        return (n1 - n0) * NS / (t1 - t0)


def bootstrap(ratios: list[float]) -> tuple[float, float]:
    """95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[3899]


def measure(options: argparse.Namespace, agent_arguments: list[str]) -> list[float]:
    """Ratios of all on blocks."""
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("gpu_workloads.py")), options.workload],
        stdout=subprocess.PIPE,
        text=True,
    )
    progress = Progress(program)
    with OtlpSink() as sink:
        agent = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "otel_gpuflame",
                "-v",
                "agent",
                "--endpoint",
                sink.grpc_endpoint,
                *agent_arguments,
            ],
            cwd=ROOT,
        )
        try:
            return run_blocks(options, progress, agent)
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(60)
            program.kill()
            program.wait()
            print_agent_cost(options, sink)


def run_blocks(
    options: argparse.Namespace, progress: Progress, agent: subprocess.Popen[bytes]
) -> list[float]:
    """Alternate, and compare each on block with the off blocks on both sides."""
    time.sleep(options.warmup)
    rates = []
    for block in range(2 * options.pairs + 1):
        on = block % 2 == 1
        agent.send_signal(signal.SIGUSR2 if on else signal.SIGUSR1)
        start_ns = time.monotonic_ns()
        time.sleep(options.block)
        settle = 0 if options.keep_start else SETTLE_NS
        rates.append(progress.rate(start_ns + settle, time.monotonic_ns()))
    return [2 * rates[i] / (rates[i - 1] + rates[i + 1]) for i in range(1, len(rates) - 1, 2)]


def print_agent_cost(options: argparse.Namespace, sink: OtlpSink) -> None:
    """How much arrived, so that a silent agent does not pass for a cheap one."""
    print(f"{options.workload}: {len(sink.received)} requests received", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--block", type=float, default=5.0, help="seconds")
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds before the first block")
    parser.add_argument("--keep-start", action="store_true")
    options, agent_arguments = parser.parse_known_args()
    ratios = measure(options, agent_arguments)
    low, high = bootstrap(ratios)
    print(
        f"{options.workload}: median {statistics.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}, "
        f"range {min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} blocks",
        flush=True,
    )


if __name__ == "__main__":
    main()
