# SPDX-License-Identifier: Apache-2.0
"""Target program: launches 1,000 times a second until a line comes on stdin, and prints how often."""

from __future__ import annotations

import os
import select
import sys

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

RATE_PER_S = 1_000


def main() -> None:
    """Launch and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    while not select.select([sys.stdin], [], [], 0)[0]:
        cuda.launch_many(app_common.KERNEL, RATE_PER_S // 10, rate_per_s=RATE_PER_S)
    sys.stdin.readline()
    app_common.emit({"pid": os.getpid(), "launches": cuda.counters().launches})


if __name__ == "__main__":
    app_common.run(main)
