"""What the agent costs a GPU program in steady state: its parts in paired blocks, and their sum with an interval.

Usage (root, NVIDIA GPU, PyTorch):  python -m tests.benchmarks.gpu_agent_overhead train --seconds 240 --json OUT.json
Without a GPU, on the fake driver:  python -m tests.benchmarks.gpu_agent_overhead compiled --seconds 60

One run of the program logs the time of each of its steps. Beside it overhead_host.py switches the agent's own probes in
units off-on-on-off and does what the agent does: follow, resolve, aggregate, encode, send to a receiver on loopback.

  rare    probes that are always on, samples and tracepoints, beside nothing attached
  window  an open window, beside what is always on; and what opening and closing it stalls
  direct  the agent itself at its defaults, on and off for whole cycles: the duty that it chooses, and a check
  record  everything all the time, into a file, beside nothing
  executions  with --gpu: records of executions alone, made in the program and read by us, beside none
  profiler    torch.profiler in the program, for CUDA alone, beside nothing

Loss in steady state = rare + duty × window + switching ÷ stratum. It passes when the bad end of the 95 % interval of
1 - loss is at least 0.99. SIGTERM ends it early: what has been measured so far is evaluated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from otel_gpuflame.capture.cupti.inject import injecting
from tests.benchmarks import launching
from tests.benchmarks.overhead_edges import parse
from tests.benchmarks.overhead_report import Run, evaluate, in_words
from tests.benchmarks.profiler_switch import ProfilerSwitch
from tests.benchmarks.step_log import Steps, read_steps
from tests.fakes.build import build_fakes, fake_environment
from tests.integration.collector.sink import OtlpSink

ROOT: Final = Path(__file__).parents[2]
GPU: Final = ("train", "decode", "graph")
FAKE: Final = {
    "compiled": (100, 8_000),
    "python": (50,),
}
"""Launches a step; the compiled one works for so many nanoseconds before each."""
SHARES: Final = {
    "direct": 0.15,
    "rare": 0.6,
    "window": 0.15,
    "record": 0.1,
    "executions": 0.0,
    "profiler": 0.0,
}
_START_S: Final = 90.0
"""For loading PyTorch on a slow disk; then the program has failed."""
_END_S: Final = 30.0
"""For the host to send what is left."""


def main() -> None:
    """Measure, print, write; status 1 where nothing could be measured."""
    options = _options()
    if options.again:
        runs = [read_run(path) for path in options.again]
        report = evaluate(options.workload, runs, options.duty)
    else:
        signal.signal(signal.SIGTERM, _end_early)
        with tempfile.TemporaryDirectory() as directory:
            report = measure(options, Path(directory))
    print(in_words(report), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if "parts" not in report:
        sys.exit(1)
    if report.get("host_failed", False):
        sys.exit("the host has failed: what is told here is what it had measured until then")


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """The report of one program."""
    log, edges = directory / "steps", directory / "edges"
    switch = directory / "profiler" if options.profiler else None
    with _program(options, log, switch) as program, OtlpSink() as sink:
        wait_for_steps(program, log)
        time.sleep(options.warmup)
        place = {"pid": program.pid, "endpoint": sink.grpc_endpoint}
        host = _start_host(options, {**place, "profiler_switch": str(switch or "")}, edges)
        try:
            _follow(host, program, edges)
        except KeyboardInterrupt:
            print("ended early", flush=True)
        finally:
            failed = bool(host.poll())
            _end(host)
        requests = len(sink.received)
    lines = edges.read_text().splitlines()
    run = Run(parse(lines), read_steps(log))
    if options.raw is not None:
        np.savez_compressed(
            options.raw,
            times_ns=run.steps.times_ns,
            yardsticks_ns=run.steps.yardsticks_ns,
            edges=np.array(lines),
        )
    return {
        **evaluate(options.workload, [run]),
        "requests_received": requests,
        "host_failed": failed,
    }


def read_run(path: Path) -> Run:
    """What --raw has written."""
    with np.load(path) as raw:
        yardsticks_ns = raw.get("yardsticks_ns")
        return Run(parse(raw["edges"].tolist()), Steps(raw["times_ns"], yardsticks_ns))


def command_of(
    workload: str, log: Path, switch: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a program; `switch` is for its profiler, if it has one."""
    if workload in GPU:
        module = [sys.executable, "-m", "tests.benchmarks.gpu_workloads", workload, str(log)]
        return module + ([] if switch is None else ["--profiler", str(switch)]), dict(os.environ)
    # Spinning, as the real driver does: who sleeps in a virtual machine wakes up faster beside a busy neighbour.
    settings = {"FAKE_CUDA_KERNEL_NS": "1000", "FAKE_CUDA_WAIT": "spin"}
    fakes = build_fakes()
    settings["OTEL_GPUFLAME_CUPTI"] = str(fakes / "cupti" / "libcupti.so.13")
    environment = fake_environment(fakes, **settings)
    numbers = [str(number) for number in FAKE[workload]]
    if workload == "python":
        command = [sys.executable, "-m", "tests.benchmarks.fake_steps", str(log), *numbers]
    else:
        command = [*launching.compile_target("fake_steps"), str(log), *numbers]
    return command, environment


@contextlib.contextmanager
def _program(
    options: argparse.Namespace, log: Path, switch: Path | None
) -> Iterator[subprocess.Popen[bytes]]:
    if switch is not None:
        ProfilerSwitch(switch)
    command, environment = command_of(options.workload, log, switch)
    if options.gpu:
        environment = injecting(environment)
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_steps(program: subprocess.Popen[bytes], log: Path) -> None:
    """Until a program makes steps; exits where it does not."""
    deadline = time.monotonic() + _START_S
    while not (log.exists() and len(read_steps(log).times_ns)):
        if program.poll() is not None or time.monotonic() > deadline:
            sys.exit("the program makes no steps")
        time.sleep(0.1)


def _start_host(
    options: argparse.Namespace, place: dict[str, Any], edges: Path
) -> subprocess.Popen[bytes]:
    seconds = {
        f"{part}_s": options.seconds * share
        if getattr(options, part) is None
        else getattr(options, part)
        for part, share in SHARES.items()
    }
    host_options = {
        **place,
        "block_ns": round(options.block * 1e6),
        "direct_on_s": options.direct_on,
        "apart_s": options.apart,
        "gpu": options.gpu,
        **seconds,
    }
    command = [sys.executable, "-m", "tests.benchmarks.overhead_host", json.dumps(host_options)]
    with edges.open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output)


def _follow(host: subprocess.Popen[bytes], program: subprocess.Popen[bytes], edges: Path) -> None:
    """Until the host has ended; says how far it is every five seconds."""
    told_s = time.monotonic()
    while host.poll() is None:
        if program.poll() is not None:
            print("the program has ended", flush=True)
            return
        time.sleep(0.2)
        if time.monotonic() > told_s + 5:
            told_s = time.monotonic()
            print(f"  {_last_of(edges)}", flush=True)


def _last_of(edges: Path) -> str:
    """How far the host is."""
    told = [edge for edge in parse(edges.read_text().splitlines()) if "part" in edge]
    return f"{told[-1]['part']} {told[-1]['unit']}" if told else "loading"


def _end(host: subprocess.Popen[bytes]) -> None:
    host.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        host.wait(_END_S)
    host.kill()
    host.wait()


def _end_early(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=(*GPU, *FAKE))
    parser.add_argument("--seconds", type=float, default=240.0, help="for all parts together")
    parser.add_argument(
        "--apart",
        type=float,
        default=0.0,
        help="seconds to measure each of what is always on by itself, beside the other parts",
    )
    for part in SHARES:
        parser.add_argument(f"--{part}", type=float, help="seconds of this part alone; 0: none")
    parser.add_argument("--direct-on", type=float, default=25.0, help="seconds on in its cycles")
    parser.add_argument("--block", type=float, default=40.0, help="ms of the blocks at both ends")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="with the injected library in the program: windows and recordings have executions, too",
    )
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before it begins")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--raw", type=Path, help="where to write edges and steps (npz)")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="NPZ", help="evaluate what --raw has written"
    )
    parser.add_argument(
        "--duty",
        type=float,
        help="with --again: the sum at this duty, not at that which the agent chose",
    )
    options = parser.parse_args()
    if options.duty is not None and not options.again:
        parser.error("--duty is for --again: otherwise the agent chooses it")
    if options.executions and not options.gpu:
        parser.error("--executions needs --gpu")
    if options.profiler and options.workload not in GPU:
        parser.error(f"--profiler is for programs with PyTorch: {', '.join(GPU)}")
    return options


if __name__ == "__main__":
    main()
