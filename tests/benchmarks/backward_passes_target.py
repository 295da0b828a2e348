"""Target of `backward_passes`: backward passes of the fake engine under some Python frames, so many as a line says."""

from __future__ import annotations

import os
import sys
import time

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.torch_engine import FakeEngine, Node


def descend(depth: int, engine: FakeEngine, nodes: list[Node], passes: int) -> float:
    """Run passes from so many frames further down; seconds that they took."""
    if depth:
        return descend(depth - 1, engine, nodes, passes)
    began_s = time.perf_counter()
    for _ in range(passes):
        engine.backward(nodes, 0, lambda _frame: None)
    return time.perf_counter() - began_s


def main() -> None:
    """Do as each line says."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("--frames", type=int, default=20)
    options = parser.parse_args()
    cuda = FakeCuda()
    engine = FakeEngine(cuda.context, devices=1, max_depth=1, new_thread=lambda: None)
    nodes = [Node(function=cuda.function(app_common.KERNEL), device=0)]
    app_common.hold(options)
    for line in sys.stdin:
        seconds = descend(options.frames, engine, nodes, int(line))
        app_common.emit({"pid": os.getpid(), "seconds": seconds})


if __name__ == "__main__":
    app_common.run(main)
