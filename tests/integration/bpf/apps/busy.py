# SPDX-License-Identifier: Apache-2.0
"""Target program for any Python from 3.8 on: one function uses a CPU for as long as it is told."""

import json
import os
import sys
import time


def spin_on_cpu(cpu_ns):
    """Use `cpu_ns` nanoseconds of CPU time; what was really used."""
    start_ns = time.thread_time_ns()
    used_ns, total = 0, 0
    while used_ns < cpu_ns:
        for number in range(2000):
            total += number * number
        used_ns = time.thread_time_ns() - start_ns
    return used_ns


def main():
    """Print how much CPU time the function has used."""
    cpu_ns = spin_on_cpu(int(sys.argv[1]))
    print(json.dumps({"pid": os.getpid(), "cpu_ns": cpu_ns, "version": sys.version}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
