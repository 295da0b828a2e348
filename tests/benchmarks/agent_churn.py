"""What the agent counts and keeps while GPU processes come and go: 1,000 short ones and 50 long ones in ten minutes.

Usage (root): python -m tests.benchmarks.agent_churn [--short 1000] [--long 50] [--duration 600]

Programs run on the fake driver, the agent with --duty 100% and windows of 2 s. Printed: launches that programs say they
made against those in profiles, how many of them carry only the command name of their process, memory, descriptors,
links and map entries of the agent after a fifth of the processes and when all have ended, and its memory once a minute.
Short programs are run again when the agent has ended: their exit codes and outputs must be the same. Exit status 1
where something is missing that was not counted as lost, differs, or an entry of an ended process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.fakes.build import build_fakes
from tests.integration.bpf.agent.churn import Churn, ChurnFigures, Load
from tests.integration.bpf.agent.harness import (
    FULL,
    agent,
    beacon,
    build_short_lived,
    memory_kib,
    own_driver,
)
from tests.integration.collector.sink import OtlpSink

REFERENCES: Final = 120
"""Short programs that are run without an agent: ten of each combination of kind and exit code."""
_MINUTE_S: Final = 60.0


def measure(load: Load) -> tuple[ChurnFigures, int, list[int]]:
    """Run the load beside an agent: the figures, programs that differ without it, its memory by the minute in KiB."""
    with tempfile.TemporaryDirectory() as directory, OtlpSink() as sink:
        driver = own_driver(build_fakes(), Path(directory))
        program = build_short_lived(Path(directory))
        with agent(sink, *FULL) as subject, beacon(driver, subject):
            with _memory_by_the_minute(subject.pid) as memory:
                figures = Churn(subject, sink, driver, program, load).run()
            reference = Churn(subject, sink, driver, program, load)
            for number in range(min(REFERENCES, load.short)):
                process = reference._short(number)
                process.wait()
                reference._has_ended(process, number)
    return figures, reference._wrong_codes + reference._wrong_outputs, memory


@contextlib.contextmanager
def _memory_by_the_minute(pid: int) -> Iterator[list[int]]:
    found: list[int] = []
    over = threading.Event()

    def follow() -> None:
        with contextlib.suppress(OSError, IndexError):
            while not over.wait(_MINUTE_S):
                found.append(memory_kib(pid))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def report(figures: ChurnFigures, differ_without: int, memory: list[int]) -> bool:
    """Print the figures; whether everything is in order."""
    missing = 0
    for kind, made in sorted(figures.made.items()):
        profiled = figures.profiled[kind]
        missing += made - profiled
        by_name = figures.by_command_name[kind]
        print(f"{kind:9} launches {made:9,}  profiled {profiled:9,}  by command name {by_name:7,}")
    print(f"missing {missing:,}, counted as lost {figures.lost:,}")
    print(f"exit codes that differ {figures.exit_codes_differ}, outputs {figures.outputs_differ}")
    print(f"run again without an agent: {differ_without} of up to {REFERENCES} differ")
    print(f"memory by the minute {', '.join(f'{kib:,}' for kib in memory)} KiB")
    for name, held in (("after a fifth", figures.before), ("at the end", figures.after)):
        print(
            f"{name:13} {held.memory_kib:,} KiB, {held.descriptors} descriptors, "
            f"{held.own_links} links, {held.stale_entries} stale entries"
        )
    wrong = figures.exit_codes_differ + figures.outputs_differ + differ_without
    wrong += figures.after.stale_entries
    return 0 <= missing <= figures.lost and not wrong


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--short", type=int, default=1_000)
    parser.add_argument("--long", type=int, default=50)
    parser.add_argument("--duration", type=float, default=600, help="seconds")
    options = parser.parse_args()
    found = measure(Load(options.short, options.long, options.duration))
    sys.exit(0 if report(*found) else 1)


if __name__ == "__main__":
    main()
