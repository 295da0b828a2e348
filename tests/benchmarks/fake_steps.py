"""Target with an interpreter, in the place of a launch-bound GPU program: as fake_steps.c, launching from Python.

Run on the fake driver (tests/fakes): python -m tests.benchmarks.fake_steps LOG LAUNCHES
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.step_log import StepWriter
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def step(cuda: FakeCuda, launches: int) -> None:
    """Launch and wait."""
    for _ in range(launches):
        cuda.launch(app_common.KERNEL)
    cuda.synchronize()


def main() -> None:
    """Run until killed."""
    log, launches = StepWriter(Path(sys.argv[1])), int(sys.argv[2])
    cuda = FakeCuda()
    while True:
        step(cuda, launches)
        log.done()


if __name__ == "__main__":
    app_common.run(main)
