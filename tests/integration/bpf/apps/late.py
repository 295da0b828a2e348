# SPDX-License-Identifier: Apache-2.0
"""Target program: does GPU work before the recorder comes, while it is there, and prints the truth."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

BEFORE, AFTER = 5, 23
KERNEL_NS = 5_000_000
MARK = "  # " + "WAIT LINE"


def wait_for_gpu(cuda: FakeCuda) -> None:
    """The function that a profile must blame."""
    cuda.synchronize(0)  # WAIT LINE


def wait_line() -> int:
    """Number of the marked line in this file."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(MARK))


def main() -> None:
    """Names are looked up before --hold, so the recorder cannot know them."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, KERNEL_NS)
    for _ in range(BEFORE):
        cuda.launch(app_common.KERNEL)
    cuda.synchronize()
    app_common.hold(options)
    for _ in range(AFTER):
        cuda.launch(app_common.KERNEL)
    wait_for_gpu(cuda)
    app_common.emit(
        {
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "launches": AFTER,
            "function": wait_for_gpu.__name__,
            "line": wait_line(),
        }
    )


if __name__ == "__main__":
    app_common.run(main)
