"""Target with PyTorch on the CPU: trains, and launches on the fake driver from operators of C++, both ways.

For each line "STEPS" on standard input it trains that often and prints how many kernels it launched. Its extension is
built first, in the directory that is its argument.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from tests.fakes import app_common, steps
from tests.fakes.cuda_driver import FakeCuda

PARTS, BLOCKS, WIDTH, BATCH = 3, 4, 8, 4


class Block(torch.nn.Module):  # type: ignore[misc]
    """Three launches around a layer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.activation = torch.nn.GELU()

    def forward(self, x: Any) -> Any:
        """See torch.nn.Module."""
        x = torch.ops.ogf.kernel(x)
        x = torch.ops.ogf.kernel(self.layer(x))
        return torch.ops.ogf.kernel(self.activation(x)) + x


class Part(torch.nn.Module):  # type: ignore[misc]
    """Some blocks and a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))

    def forward(self, x: Any) -> Any:
        """See torch.nn.Module."""
        return torch.ops.ogf.kernel(self.blocks(x))


def train(model: Any, optimizer: Any, x: Any) -> None:
    """One step."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    torch.ops.ogf.kernel(loss.detach())
    loss.backward()
    optimizer.step()


def main() -> None:
    """Build, set up and serve."""
    source = str(Path(__file__).with_name("torch_walks.cc"))
    extension = cpp_extension.load("ogf_torch_walks", [source], build_directory=sys.argv[1])
    torch.set_num_threads(1)
    cuda = FakeCuda()
    address = ctypes.cast(cuda._cuda.cuLaunchKernel, ctypes.c_void_p).value
    extension.set_up(cuda.function(app_common.KERNEL), address)
    model = torch.nn.Sequential(*(Part() for _ in range(PARTS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps.say({"ready": True})
    for line in sys.stdin:
        before = extension.launched()
        x = torch.randn(BATCH, WIDTH)
        for _ in range(int(line)):
            train(model, optimizer, x)
        steps.say({"launches": extension.launched() - before})


if __name__ == "__main__":
    app_common.run(main)
