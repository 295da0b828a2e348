# SPDX-License-Identifier: Apache-2.0
"""Target program for any Python from 3.8 on: one function uses a CPU for as long as it is told."""

import os
import sys
import time

from tests.fakes import steps

STOLEN_NS = 5000000
"""A turn of the loop takes some 0.1 ms of CPU time. One that seems to have taken this did not: the host of a virtual
machine had taken the CPU away, and no clock of ours ran."""


def spin_on_cpu(cpu_ns):
    """Use `cpu_ns` nanoseconds of CPU time; what was really used, and how many times the CPU was stolen."""
    used_ns, stolen, total = 0, 0, 0
    last_ns = time.thread_time_ns()
    while used_ns < cpu_ns:
        for number in range(2000):
            total += number * number
        now_ns = time.thread_time_ns()
        if now_ns - last_ns < STOLEN_NS:
            used_ns += now_ns - last_ns
        else:
            stolen += 1
        last_ns = now_ns
    return used_ns, stolen


def main():
    """Say how much CPU time the function has used, in how much time."""
    if "--hold" in sys.argv:
        steps.hold()
    begin_ns = time.monotonic_ns()
    cpu_ns, stolen = spin_on_cpu(int(sys.argv[1]))
    truth = {"cpu_ns": cpu_ns, "elapsed_ns": time.monotonic_ns() - begin_ns, "stolen": stolen}
    steps.tell({"pid": os.getpid(), "version": sys.version, **truth})


if __name__ == "__main__":
    main()
