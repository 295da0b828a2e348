"""What the agent itself takes: CPU and memory at 0, 10,000 and 100,000 launches a second.

Usage (root): python -m tests.benchmarks.agent_load [--seconds 30] [--settle 25] [--json FILE]

The agent runs as a command at its defaults, and again with --duty 100%, and sends to a receiver on loopback. One
compiled loop launches on the fake driver at the rate; at rate 0 a program holds an initialised driver and waits.
Counted is everything between two moments: the agent, its encoding process, and whatever else it has started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.process_cost import cost_of, family
from tests.fakes.build import app_command, build_fakes
from tests.integration.bpf.agent.harness import driver_of, own_driver
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink

ROOT: Final = Path(__file__).parents[2]
RATES: Final = (0, 10_000, 100_000)
MODES: Final = {"defaults": (), "--duty 100%": ("--duty", "100%")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """CPU in % of one core, memory as PSS in MiB. The agent is the capturing process; its children encode."""

    mode: str
    launches_per_s: int
    agent_cpu: float
    children_cpu: float
    agent_mib: float
    children_mib: float
    program_cpu: float
    sent_bytes_per_s: float


def measure(mode: str, rate: int, settle_s: float, measure_s: float) -> Load:
    """One rate in one mode. Raises RuntimeError where launches are made and no profile arrives."""
    with tempfile.TemporaryDirectory() as directory, OtlpSink() as sink:
        driver = own_driver(build_fakes(), Path(directory))
        with _program(driver, rate) as program, _agent(sink, MODES[mode]) as agent:
            agent.wait_for(lambda: driver_of(driver) in agent.stderr.text(), "probes on the driver")
            time.sleep(settle_s)
            pids = [*family(agent.process.pid), program.process.pid]
            before, begun_s, known = (
                [cost_of(p) for p in pids],
                time.monotonic(),
                len(sink.received),
            )
            time.sleep(measure_s)
            after, elapsed_s = [cost_of(p) for p in pids], time.monotonic() - begun_s
            sent = [len(each.body) for each in sink.received[known:]]
    if rate and not sent:
        raise RuntimeError("no profiles arrived: what was measured is no agent at work")
    cpu = [100 * (b.cpu_s - a.cpu_s) / elapsed_s for a, b in zip(before, after, strict=True)]
    mib = [each.pss_bytes / 2**20 for each in after]
    return Load(
        mode=mode,
        launches_per_s=rate,
        agent_cpu=cpu[0],
        children_cpu=sum(cpu[1:-1]),
        agent_mib=mib[0],
        children_mib=sum(mib[1:-1]),
        program_cpu=cpu[-1],
        sent_bytes_per_s=sum(sent) / elapsed_s,
    )


@contextlib.contextmanager
def _program(driver: dict[str, str], rate: int) -> Iterator[Running]:
    arguments = (10**9, "--rate", rate) if rate else (0, "--hold")
    command = app_command("app_launch", *arguments)
    with running(command, {**driver, "OTEL_SERVICE_NAME": "load"}) as program:
        yield program


@contextlib.contextmanager
def _agent(sink: OtlpSink, options: tuple[str, ...]) -> Iterator[Running]:
    command = [sys.executable, "-m", "otel_gpuflame", "-v", "agent", *options]
    command += ["--endpoint", f"http://{sink.grpc_endpoint}"]
    inherited = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)
    with running(command, {**os.environ, "PYTHONPATH": path}) as agent:
        yield agent


def in_words(load: Load) -> str:
    """One line."""
    return (
        f"{load.mode:12} {load.launches_per_s:7,} launches/s: agent {load.agent_cpu:5.2f} % of a core, "
        f"{load.agent_mib:4.0f} MiB; children {load.children_cpu:5.2f} %, {load.children_mib:4.0f} MiB; "
        f"the program {load.program_cpu:5.1f} %; sent {load.sent_bytes_per_s:,.0f} bytes/s"
    )


def main() -> None:
    """Measure and print; what has been measured is in the file after each line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="that are counted, at each rate"
    )
    parser.add_argument("--settle", type=float, default=25.0, help="seconds before that")
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for mode in options.modes:
        for rate in RATES:
            found.append(measure(mode, rate, options.settle, options.seconds))
            print(in_words(found[-1]), flush=True)
            if options.json is not None:
                text = json.dumps([asdict(each) for each in found], indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
