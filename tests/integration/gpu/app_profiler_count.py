"""Target program: trains a few steps under torch.profiler and prints how much GPU work that saw, as JSON.

The profiler starts before CUDA is initialised, so its counts are those of the whole process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import torch

STEPS = 10
CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def train() -> None:
    """A transformer layer, forward, backward and update, with one `.item()` a step."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 64, 256).cuda()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
    torch.cuda.synchronize()


def main() -> None:
    """Train and count."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        train()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    counts = Counter(event.get("cat") for event in events if event.get("ph") == "X")
    print(json.dumps({"pid": os.getpid(), **{name: counts[name] for name in CATEGORIES}}))


if __name__ == "__main__":
    main()
