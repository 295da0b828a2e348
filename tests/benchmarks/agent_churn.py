"""What the agent counts and keeps while GPU processes come and go: 1,000 short ones and 10 long ones in ten minutes.

Usage (root): python -m tests.benchmarks.agent_churn [--short 1000] [--long 10] [--duration 600]

Programs run on the fake driver, the agent with --duty 100% and windows of 2 s. Printed: launches that programs say they
made against those in profiles, how many of them carry only the command name of their process, memory, descriptors,
links and map entries of the agent after a fifth of the processes and when all have ended. Exit status 1 where something
is missing that was not counted as lost, or an entry of an ended process is left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fakes.build import build_fakes
from tests.integration.bpf.agent.churn import Churn, ChurnFigures, Load
from tests.integration.bpf.agent.harness import FULL, agent, beacon, build_short_lived, own_driver
from tests.integration.collector.sink import OtlpSink


def measure(load: Load) -> ChurnFigures:
    """Run the load beside an agent."""
    with tempfile.TemporaryDirectory() as directory, OtlpSink() as sink:
        driver = own_driver(build_fakes(), Path(directory))
        program = build_short_lived(Path(directory))
        with agent(sink, *FULL) as subject, beacon(driver, subject):
            return Churn(subject, sink, driver, program, load).run()


def report(figures: ChurnFigures) -> bool:
    """Print the figures; whether everything is in order."""
    missing = 0
    for kind, made in sorted(figures.made.items()):
        profiled = figures.profiled[kind]
        missing += made - profiled
        by_name = figures.by_command_name[kind]
        print(f"{kind:9} launches {made:9,}  profiled {profiled:9,}  by command name {by_name:7,}")
    print(f"missing {missing:,}, counted as lost {figures.lost:,}")
    print(f"exit codes that differ {figures.exit_codes_differ}, outputs {figures.outputs_differ}")
    for name, held in (("after a fifth", figures.before), ("at the end", figures.after)):
        print(
            f"{name:13} {held.memory_kib:,} KiB, {held.descriptors} descriptors, "
            f"{held.own_links} links, {held.stale_entries} stale entries"
        )
    wrong = figures.exit_codes_differ + figures.outputs_differ + figures.after.stale_entries
    return 0 <= missing <= figures.lost and not wrong


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--short", type=int, default=1_000)
    parser.add_argument("--long", type=int, default=10)
    parser.add_argument("--duration", type=float, default=600, help="seconds")
    options = parser.parse_args()
    figures = measure(Load(options.short, options.long, options.duration))
    sys.exit(0 if report(figures) else 1)


if __name__ == "__main__":
    main()
