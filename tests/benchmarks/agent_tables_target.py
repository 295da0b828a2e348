"""Target with PyTorch on the CPU: trains until it is told to end, and launches on the fake driver meanwhile."""

from __future__ import annotations

import json
import sys
import threading
from typing import Final

import torch

from tests.fakes.cuda_driver import FakeCuda

WIDTH: Final = 256
PAUSE_S: Final = 0.01


def main() -> None:
    """Say that it is ready, then train until a line comes; how many launches there were."""
    torch.set_num_threads(1)
    cuda, over = FakeCuda(), threading.Event()
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    threading.Thread(target=_wait_for_a_line, args=(over,), daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    steps = 0
    while not over.wait(PAUSE_S):
        optimizer.zero_grad()
        loss = model(torch.randn(32, WIDTH)).square().mean()
        cuda.launch_many("step", 20)
        loss.backward()
        optimizer.step()
        steps += 1
    print(json.dumps({"steps": steps, "launches": cuda.counters().launches}), flush=True)


def _wait_for_a_line(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


if __name__ == "__main__":
    main()
