"""Every workload of gpu_agent_overhead.py in turn, within a number of seconds; each leaves its report when it is done.

Usage (root, NVIDIA GPU):  python -m tests.benchmarks.gpu_session --total 1500 --out DIRECTORY
Rehearsal without a GPU:   python -m tests.benchmarks.gpu_session --fake --total 150 --out DIRECTORY

What is left of the time is shared among the workloads that are left. --load SECONDS takes as many at the end for
agent_load.py. A workload that fails does not keep the others from running; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.benchmarks.gpu_agent_overhead import FAKE, GPU, ROOT

_WARMUP_S: Final = 3.0
_START_S: Final = 14.0
"""From starting a workload to the first block: PyTorch, warming up; and from its last block to its report."""
_SHORT_S: Final = 100.0
"""A workload with less than that: cycles of `direct` end when the agent has chosen."""
_GRACE_S: Final = 25.0
_LOAD_RUNS: Final = 3


def main() -> None:
    """Run all."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + options.total
    failed = []
    workloads = options.workloads or list(FAKE if options.fake else GPU)
    for number, workload in enumerate(workloads):
        left_s = end_s - options.load - time.monotonic()
        seconds = left_s / (len(workloads) - number)
        print(f"{workload}: {seconds:.0f} s of {left_s:.0f} s", flush=True)
        if not _measure(workload, seconds, options.out, options.block):
            failed.append(workload)
    if options.load and not _load(options.load, options.out):
        failed.append("load")
    if failed:
        sys.exit(f"without a result: {', '.join(failed)}")


def _measure(workload: str, seconds: float, out: Path, block_ms: float) -> bool:
    budget_s = max(seconds - _START_S, 10.0)
    command = [sys.executable, "-m", "tests.benchmarks.gpu_agent_overhead", workload]
    command += [
        "--seconds",
        f"{budget_s:.1f}",
        "--warmup",
        f"{_WARMUP_S}",
        "--block",
        f"{block_ms}",
    ]
    command += ["--json", str(out / f"{workload}.json"), "--raw", str(out / f"{workload}.npz")]
    if seconds < _SHORT_S:
        command += ["--direct-on", "7", "--direct", "15"]
        left_s = budget_s - 15
        shares = {"rare": 0.45, "window": 0.3, "record": 0.25}
        for part, share in shares.items():
            command += [f"--{part}", f"{left_s * share:.1f}"]
    return _run(command, seconds + _GRACE_S)


def _load(seconds: float, out: Path) -> bool:
    each_s = seconds / _LOAD_RUNS - 4
    command = [sys.executable, "-m", "tests.benchmarks.agent_load", "--modes", "defaults"]
    command += ["--settle", f"{each_s * 0.5:.1f}", "--seconds", f"{each_s * 0.5:.1f}"]
    return _run([*command, "--json", str(out / "load.json")], seconds + _GRACE_S)


def _run(command: list[str], limit_s: float) -> bool:
    """Whether it succeeds; at the limit it is asked to end, and evaluates what it has."""
    with subprocess.Popen(command, cwd=ROOT) as process:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(limit_s) == 0
            process.send_signal(number)
            limit_s = _GRACE_S
    return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--total", type=float, required=True, help="seconds")
    parser.add_argument("--out", type=Path, required=True, help="directory for reports")
    parser.add_argument("--workloads", nargs="+", choices=(*GPU, *FAKE))
    parser.add_argument("--fake", action="store_true", help="on the fake driver")
    parser.add_argument("--block", type=float, default=40.0, help="ms")
    parser.add_argument(
        "--load", type=float, default=0.0, help="seconds of --total for agent_load.py"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
