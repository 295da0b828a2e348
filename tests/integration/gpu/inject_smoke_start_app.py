"""Target program of inject_smoke_start.py: launches as soon as it can, through the CUDA runtime and through cuBLAS.

Arguments: `wait` to go on until stdin ends, `end` to end at once, `count` to say what torch.profiler sees of it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

ADDITIONS = 200
PRODUCTS = 50


def work() -> None:
    """The same kernels each time; the first of them makes the context."""
    numbers = torch.zeros(1024, device="cuda")
    for _ in range(ADDITIONS):
        numbers.add_(1)
    matrix = torch.ones(64, 64, device="cuda")
    for _ in range(PRODUCTS):
        matrix = matrix @ matrix
    torch.cuda.synchronize()


def counted() -> dict[str, Any]:
    """How many kernels that is."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
    events = profiler.events() or []
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = ("Memset", "Memcpy")
    return {"kernels": sum(not event.name.startswith(copies) for event in kernels)}


def main() -> None:
    """Work, then wait if told to."""
    what = sys.argv[1]
    truth = counted() if what == "count" else {}
    if what != "count":
        work()
    print(json.dumps({"pid": os.getpid(), **truth}), flush=True)
    if what == "wait":
        sys.stdin.read()


if __name__ == "__main__":
    main()
