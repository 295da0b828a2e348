"""Target program: endless GPU work of one kind, logging its steps for a benchmark to read.

Usage: python -m tests.benchmarks.gpu_workloads WORKLOAD LOG [--profiler SWITCH]

train: one transformer layer forward, backward and AdamW with .item() a step (launch-bound).
decode: 48 times (small matrix product, silu, add, rms_norm) at batch 1, one synchronise a token (launch-bound).
graph: the same as one CUDA graph.

The time of each step goes to the file LOG (step_log.py), and how long yardsticks took at four places of it (a graph: at
one): additions of single numbers on the CPU, so much of the same code as a launch goes through, but no call of the
driver. A processor that is slower for a while, by its clock or its neighbours, is slower at both.

With --profiler, torch.profiler records what CUDA does while the file SWITCH says so (profiler_switch.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from tests.benchmarks.profiler_switch import SwitchedProfiler
from tests.benchmarks.step_log import StepWriter

LAYERS = 48
WIDTH = 1024
ADDITIONS = 6
"""9 µs on a good machine, 25 on a busy one. Eight times that is 5 % of a training step, and of a token: with half as
much of it a training step's losses spread by a tenth more."""
Yardstick = Callable[[], None]


def make_yardstick(log: StepWriter) -> Yardstick:
    """Measures a fixed piece of work twice, and takes it for twice the shorter time.

    A sample of the CPU may interrupt one of them. That is what it costs, and no matter of the processor's speed.
    """
    one = torch.ones(1)

    def measure() -> None:
        begin_ns = time.monotonic_ns()
        for _ in range(ADDITIONS):
            one + one
        middle_ns = time.monotonic_ns()
        for _ in range(ADDITIONS):
            one + one
        log.measured(2 * min(middle_ns - begin_ns, time.monotonic_ns() - middle_ns))

    return measure


def make_train(yardstick: Yardstick) -> Callable[[], None]:
    """One training step."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 128, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        yardstick()
        loss = model(batch).square().mean()
        yardstick()
        loss.backward()
        yardstick()
        optimizer.step()
        yardstick()
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
            if number % (LAYERS // 4) == 0:
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


def follower(switch: Path | None) -> Callable[[], None]:
    """What is done between two steps."""
    if switch is None:
        return lambda: None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    return SwitchedProfiler(switch, lambda: torch.profiler.profile(activities=activities)).follow


MAKERS = {"train": make_train, "decode": make_decode, "graph": make_graph}


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(MAKERS))
    parser.add_argument("log", type=Path)
    parser.add_argument("--profiler", type=Path, metavar="SWITCH")
    options = parser.parse_args()
    log = StepWriter(options.log)
    between_steps = follower(options.profiler)
    step = MAKERS[options.workload](make_yardstick(log))
    for _ in range(20):
        step()
    while True:
        step()
        log.done()
        between_steps()


if __name__ == "__main__":
    main()
