"""What native stacks cost a GPU program: nanoseconds of a hit cut, remembered and walked; tables; an agent's memory.

Usage (root, NVIDIA GPU, PyTorch):  python -m tests.benchmarks.gpu_unwind_cost train [--seconds 5] [--json FILE]

One run of the program (gpu_workloads.py), and for each way of walking a recorder in a process of its own, which counts
what BPF programs take (program_statistics.py: the trap is not in it). Then the agent as a command, without tables and
with them. Tables are kernel memory: they are in `tables_mb` and in no process's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.capture.bpf.kernel import WALK_MEMORY
from otel_gpuflame.capture.live import LiveOptions
from tests.benchmarks.gpu_agent_overhead import GPU, ROOT, command_of, wait_for_steps
from tests.benchmarks.process_cost import cost_of, family
from tests.benchmarks.program_statistics import Statistics, program_statistics
from tests.benchmarks.switched_capture import SwitchedCapture
from tests.integration.collector.sink import OtlpSink

MODES: Final = {"cut": "", "remembered": "", "walked": "off"}
"""Way of walking -> what WALK_MEMORY says. `cut`: no tables."""
AGENTS: Final = ("--no-unwind", "--unwind")
STEP_NS: Final = 50_000_000
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_LIMIT_S: Final = 60.0


def record(mode: str, pid: int, seconds: float) -> dict[str, Any]:
    """Capture everything of a process: first until tables are there, then counted."""
    live = LiveOptions(pids=(pid,), unwind=mode != "cut", cpu=True, driver=True)
    before_mb = cost_of(os.getpid()).pss_bytes / 1e6
    with SwitchedCapture(live) as capture:
        _step_for(capture, seconds)
        tables = capture._stacks._tables
        with program_statistics(capture.kernel.object) as statistics:
            walks, first = _walks(capture), statistics()
            _step_for(capture, seconds)
            last, walks_since = statistics(), _walks(capture)
        return {
            "mode": mode,
            "programs": since(first, last, seconds),
            "walks_per_s": {
                name: (count - walks.get(name, 0)) / seconds for name, count in walks_since.items()
            },
            "tables": tables._files.made if tables is not None else 0,
            "tables_mb": tables._files.bytes / 1e6 if tables is not None else 0.0,
            "tables_cpu_s": _cpu_s(tables._thread) if tables is not None else 0.0,
            "recorder_mb": cost_of(os.getpid()).pss_bytes / 1e6,
            "recorder_before_mb": before_mb,
        }


def _step_for(capture: SwitchedCapture, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        capture.step(STEP_NS)


def _walks(capture: SwitchedCapture) -> dict[str, int]:
    counters = capture.kernel.counters()
    return {each.outcome: each.count for each in counters if each.kind == "walk"}


def since(first: Statistics, last: Statistics, seconds: float) -> dict[str, dict[str, float]]:
    """Runs a second and nanoseconds a run of each program that ran."""
    found = {}
    for name, (runs, ns) in last.items():
        runs_before, ns_before = first[name]
        if runs > runs_before:
            count = runs - runs_before
            found[name] = {"per_s": count / seconds, "ns": (ns - ns_before) / count}
    return found


def _cpu_s(thread: threading.Thread) -> float:
    stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) * _TICK_S


def agent(flag: str, seconds: float) -> dict[str, Any]:
    """Memory and CPU of the agent and its children, beside a program that runs already."""
    with OtlpSink() as sink:
        command = [sys.executable, "-m", "otel_gpuflame", "agent", flag]
        command += ["--endpoint", f"http://{sink.grpc_endpoint}"]
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                time.sleep(seconds)
                costs = [cost_of(pid) for pid in family(process.pid)]
                if process.poll() is not None:
                    raise RuntimeError(f"the agent has ended with {process.returncode}")
            finally:
                process.terminate()
    agent_cost, *children = costs
    return {
        "mode": f"agent {flag}",
        "agent_mb": agent_cost.pss_bytes / 1e6,
        "children_mb": sum(each.pss_bytes for each in children) / 1e6,
        "cpu_s": sum(each.cpu_s for each in costs),
        "seconds": seconds,
    }


@contextlib.contextmanager
def _program(workload: str) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "steps"
        command, environment = command_of(workload, log)
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            try:
                wait_for_steps(process, log)
                yield process.pid
            finally:
                process.kill()


def _alone(mode: str, pid: int, seconds: float) -> dict[str, Any]:
    """`record` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu_unwind_cost", "--mode", mode]
    command += ["--pid", str(pid), "--seconds", str(seconds)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, WALK_MEMORY: MODES[mode]},
        stdout=subprocess.PIPE,
        timeout=_LIMIT_S + 2 * seconds,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def in_words(found: dict[str, Any]) -> str:
    """A few lines."""
    if "agent_mb" in found:
        return (
            f"{found['mode']}: {found['agent_mb']:.0f} MB, children {found['children_mb']:.0f} MB, "
            f"{found['cpu_s'] / found['seconds']:.2f} cores in {found['seconds']:.0f} s"
        )
    programs = sorted(found["programs"].items(), key=lambda each: -each[1]["per_s"])
    walks = (f"{name} {count:,.0f}/s" for name, count in found["walks_per_s"].items())
    return "\n".join(
        [
            f"{found['mode']}: {found['tables']} tables, {found['tables_mb']:.1f} MB in "
            f"{found['tables_cpu_s']:.2f} s of CPU; the recorder {found['recorder_before_mb']:.0f} "
            f"to {found['recorder_mb']:.0f} MB; walks: {', '.join(walks) or 'none counted'}",
            *(
                f"  {name}: {each['per_s']:,.0f}/s of {each['ns']:,.0f} ns"
                for name, each in programs
            ),
        ]
    )


def main() -> None:
    """All ways of walking, then both agents."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("workload", nargs="?", choices=GPU, default=GPU[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="to make tables, and to count")
    parser.add_argument("--agent-seconds", type=float, default=20.0, help="for each agent")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mode", choices=tuple(MODES), help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode is not None:
        print(json.dumps(record(options.mode, options.pid, options.seconds)))
        return
    found: list[dict[str, Any]] = []
    with _program(options.workload) as pid:
        for mode in MODES:
            found.append(_alone(mode, pid, options.seconds))
            print(in_words(found[-1]), flush=True)
        for flag in AGENTS:
            found.append(agent(flag, options.agent_seconds))
            print(in_words(found[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"workload": options.workload, "found": found}))


if __name__ == "__main__":
    main()
