"""What unwind tables take of the agent beside PyTorch processes: memory, its BPF programs, and how late it is.

Usage (root): OGF_TORCH_PYTHON=… python -m tests.benchmarks.agent_tables [--processes 8] [--seconds 40] [--newcomers 10]

Needs an interpreter with PyTorch (CPU is enough). Two agents after each other, of which one walks by tables. Programs
train and launch on the fake driver. Printed for each: resident memory of the agent and of its table process, memory of
its BPF maps, processor time, before the first program, with one and with all; nanoseconds a run of BPF programs that
walk; and how long short Python programs that start meanwhile wait until they are known.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.fakes.build import FAKES, ROOT, build_fakes
from tests.integration.bpf.agent.harness import (
    FULL,
    Agent,
    agent,
    beacon,
    is_known,
    memory_kib,
    own_driver,
    wait_until,
)
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink

_BPF_CALL: Final = 321
"""On x86-64, as the tables."""
_BPF_ENABLE_STATS: Final = 32
_HASH_OF_MAPS: Final = "13"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def descriptors(pid: int) -> Iterator[dict[str, str]]:
    """What the kernel says of each descriptor of a process."""
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            lines = entry.read_text().splitlines()
            yield dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def bpftool(*arguments: str) -> Any:
    """Its answer."""
    return json.loads(subprocess.check_output(["bpftool", "-j", *arguments]))


def map_bytes(pid: int) -> tuple[int, int]:
    """Bytes of memory of all BPF maps that a process holds, and of the tables in its maps of maps."""
    maps = {facts["map_id"]: facts for facts in descriptors(pid) if "map_id" in facts}
    sizes = {each["id"]: each["bytes_memlock"] for each in bpftool("map", "show")}
    inner = 0
    for number, facts in maps.items():
        if facts["map_type"] == _HASH_OF_MAPS:
            for entry in bpftool("map", "dump", "id", number):
                value = bytes(int(each, 16) for each in entry["value"])
                # Gone, where it was replaced between both looks.
                inner += sizes.get(int.from_bytes(value, "little"), 0)
    return sum(int(facts["memlock"]) for facts in maps.values()), inner


def family(pid: int) -> dict[int, str]:
    """A process with its children, and what they are."""
    found = {pid: "agent"}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"resource_tracker" not in command:
                found[int(child)] = f"child {child}"
    return found


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def say(what: str, pid: int) -> None:
    """Print what an agent takes now."""
    own, tables = map_bytes(pid)
    parts = [
        f"{name} {memory_kib(each) / 1024:.0f} MB and {cpu_s(each):.1f} s"
        for each, name in family(pid).items()
    ]
    print(f"  {what:16} {', '.join(parts)}; maps {own / 1e6:.0f} MB, tables {tables / 1e6:.1f} MB")


@contextlib.contextmanager
def runs_counted() -> Iterator[None]:
    """The kernel counts runs of programs, and their time."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = bytes(128)
    fd = libc.syscall(_BPF_CALL, _BPF_ENABLE_STATS, attributes, len(attributes))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "count runs of BPF programs")
    try:
        yield
    finally:
        os.close(fd)


def program_runs(pid: int) -> dict[str, tuple[int, int]]:
    """(runs, nanoseconds) by program."""
    numbers = {facts["prog_id"] for facts in descriptors(pid) if "prog_id" in facts}
    shown = [bpftool("prog", "show", "id", number) for number in numbers]
    return {each["name"]: (each.get("run_cnt", 0), each.get("run_time_ns", 0)) for each in shown}


def newcomers(subject: Agent, driver: dict[str, str], count: int) -> list[float]:
    """Seconds until short Python programs are known, from when they have mapped the driver."""
    waits = []
    for number in range(count):
        command = [sys.executable, str(FAKES / "app_launch.py"), "0", "--hold"]
        with running(command, {**driver, "OTEL_SERVICE_NAME": f"new{number}"}) as program:
            program.truth()
            ready_s = time.monotonic()
            known = partial(is_known, subject.pid, program.process.pid)
            wait_until(known, "it to be known", pause_s=0.001)
            waits.append(time.monotonic() - ready_s)
    return waits


def measure(options: argparse.Namespace, unwind: str) -> None:
    """Print the figures of one agent."""
    print(f"agent {unwind}, load average {os.getloadavg()[0]:.1f}", flush=True)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        sink = stack.enter_context(OtlpSink())
        driver = own_driver(build_fakes(), Path(directory))
        subject = stack.enter_context(agent(sink, *FULL, f"--{unwind}"))
        stack.enter_context(beacon(driver, subject))
        say("no program", subject.pid)
        _say_waits("known, alone", newcomers(subject, driver, options.newcomers))
        first = stack.enter_context(trainer(driver))
        first.truth()
        _say_waits("known, tables being made", newcomers(subject, driver, options.newcomers))
        time.sleep(options.seconds)
        say("one", subject.pid)
        programs = [stack.enter_context(trainer(driver)) for _ in range(options.processes - 1)]
        for each in programs:
            each.truth()
        time.sleep(options.seconds)
        say(f"{options.processes}", subject.pid)
        with runs_counted():
            before = program_runs(subject.pid)
            time.sleep(options.seconds)
            after = program_runs(subject.pid)
        _say_runs(before, after)
        for each in (first, *programs):
            each.go()
            each.finish()
        time.sleep(options.seconds)
        say("they have ended", subject.pid)
        subject.stop()


def trainer(driver: dict[str, str]) -> contextlib.AbstractContextManager[Running]:
    """A program with PyTorch."""
    command = [os.environ["OGF_TORCH_PYTHON"], "-m", "tests.benchmarks.agent_tables_target"]
    return running(command, {**driver, "PYTHONPATH": str(ROOT), "OTEL_SERVICE_NAME": "trainer"})


def _say_waits(what: str, waits_s: list[float]) -> None:
    if not waits_s:
        return
    milliseconds = sorted(1_000 * each for each in waits_s)
    print(
        f"  {what}: median {statistics.median(milliseconds):.0f} ms, most {milliseconds[-1]:.0f} ms"
    )


def _say_runs(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> None:
    for name, (runs, spent_ns) in sorted(after.items()):
        more = runs - before.get(name, (0, 0))[0]
        if more:
            ns = (spent_ns - before.get(name, (0, 0))[1]) / more
            print(f"  {name:20} {more:9,} runs of {ns:8,.0f} ns")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40, help="to wait before each look")
    parser.add_argument("--newcomers", type=int, default=10)
    parser.add_argument("--agents", nargs="+", default=["no-unwind", "unwind"])
    options = parser.parse_args()
    for choice in options.agents:
        measure(options, choice)


if __name__ == "__main__":
    main()
