"""Target program: endless GPU work of one kind, logging its steps for a benchmark to read.

Usage: python -m tests.benchmarks.gpu_workloads WORKLOAD LOG

train: one transformer layer forward, backward and AdamW with .item() a step (launch-bound).
decode: 48 times (small matrix product, silu, add, rms_norm) at batch 1, one synchronise a token (launch-bound).
graph: the same as one CUDA graph.

The time of each step goes to the file LOG (step_log.py), and how long a yardstick took in its middle: additions of
single numbers on the CPU, so much of the same code as a launch goes through, but no call of the driver. A processor
that is slower for a while, by its clock or its neighbours, is slower at both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from tests.benchmarks.step_log import StepWriter

LAYERS = 48
WIDTH = 1024
ADDITIONS = 12
"""About 10 µs: 0.3 % of a training step, 0.6 % of a token."""
Yardstick = Callable[[], None]


def make_yardstick(log: StepWriter) -> Yardstick:
    """Measures a fixed piece of work."""
    one = torch.ones(1)

    def measure() -> None:
        start_ns = time.monotonic_ns()
        for _ in range(ADDITIONS):
            one + one
        log.measured(time.monotonic_ns() - start_ns)

    return measure


def make_train(yardstick: Yardstick) -> Callable[[], None]:
    """One training step."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 128, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        yardstick()
        optimizer.step()
        loss.item()

    return step


def make_token(yardstick: Yardstick) -> Callable[[], None]:
    """The kernels of one token, without waiting for them."""
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5 for _ in range(LAYERS)]
    hidden = torch.randn(1, WIDTH, device="cuda")

    def token() -> None:
        state = hidden
        for number, weight in enumerate(weights):
            state = functional.rms_norm(state + functional.silu(state @ weight), (WIDTH,))
            if number == LAYERS // 2:
                yardstick()

    return token


def make_decode(yardstick: Yardstick) -> Callable[[], None]:
    """One token, and the wait for it."""
    token = make_token(yardstick)

    def step() -> None:
        with torch.inference_mode():
            token()
        torch.cuda.synchronize()

    return step


def make_graph(yardstick: Yardstick) -> Callable[[], None]:
    """One token as a CUDA graph, and the wait for it."""
    token = make_token(lambda: None)
    with torch.inference_mode():
        for _ in range(3):
            token()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token()

    def step() -> None:
        graph.replay()
        yardstick()
        torch.cuda.synchronize()

    return step


MAKERS = {"train": make_train, "decode": make_decode, "graph": make_graph}


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(MAKERS))
    parser.add_argument("log", type=Path)
    options = parser.parse_args()
    log = StepWriter(options.log)
    step = MAKERS[options.workload](make_yardstick(log))
    for _ in range(20):
        step()
    while True:
        step()
        log.done()


if __name__ == "__main__":
    main()
