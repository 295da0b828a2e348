# SPDX-License-Identifier: Apache-2.0
"""Target program: a model in many graphs and one kernel, step after step until a line comes on stdin."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Final

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

GRAPHS: Final = 40
STEP_S: Final = 0.01


def step(cuda: FakeCuda, graphs: list[int], stream: int) -> None:
    """Launch each, and leave the rest of the step to others."""
    for graph in graphs:
        cuda.launch_graph(graph, stream)
    cuda.launch(app_common.KERNEL, stream=stream)
    time.sleep(STEP_S)


def main() -> None:
    """Capture, launch, and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    stream = cuda.create_stream()
    graphs = [
        cuda.instantiate_captured(stream, lambda: cuda.launch(app_common.KERNEL, stream=stream))
        for _ in range(GRAPHS)
    ]
    app_common.hold(options)
    steps = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        step(cuda, graphs, stream)
        steps += 1
    sys.stdin.readline()
    app_common.emit({"pid": os.getpid(), "steps": steps, "graphs": GRAPHS})


if __name__ == "__main__":
    app_common.run(main)
