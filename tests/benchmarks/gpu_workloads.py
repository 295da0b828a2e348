"""Target program: endless GPU work of one kind, logging its steps for a benchmark to read.

Usage: python -m tests.benchmarks.gpu_workloads WORKLOAD LOG

train: one transformer layer forward, backward and AdamW with .item() a step (launch-bound).
decode: 48 times (small matrix product, silu, add, rms_norm) at batch 1, one synchronise a token (launch-bound).
graph: the same as one CUDA graph.

The time of each step goes to the file LOG (step_log.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from tests.benchmarks.step_log import StepWriter

LAYERS = 48
WIDTH = 1024


def make_train() -> Callable[[], None]:
    """One training step."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 128, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def make_token() -> Callable[[], None]:
    """The kernels of one token, without waiting for them."""
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5 for _ in range(LAYERS)]
    hidden = torch.randn(1, WIDTH, device="cuda")

    def token() -> None:
        state = hidden
        for weight in weights:
            state = functional.rms_norm(state + functional.silu(state @ weight), (WIDTH,))

    return token


def make_decode() -> Callable[[], None]:
    """One token, and the wait for it."""
    token = make_token()

    def step() -> None:
        with torch.inference_mode():
            token()
        torch.cuda.synchronize()

    return step


def make_graph() -> Callable[[], None]:
    """One token as a CUDA graph, and the wait for it."""
    token = make_token()
    with torch.inference_mode():
        for _ in range(3):
            token()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token()

    def step() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return step


MAKERS = {"train": make_train, "decode": make_decode, "graph": make_graph}


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(MAKERS))
    parser.add_argument("log", type=Path)
    options = parser.parse_args()
    step = MAKERS[options.workload]()
    for _ in range(20):
        step()
    log = StepWriter(options.log)
    while True:
        step()
        log.done()


if __name__ == "__main__":
    main()
