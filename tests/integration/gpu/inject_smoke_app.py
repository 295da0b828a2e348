"""Target program of inject_smoke.py: trains, replays a CUDA graph and profiles itself, as each line on stdin says."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
GRAPH_KERNELS = 48


class Work:
    """A transformer layer that trains, and a CUDA graph of small kernels."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(8, 64, 256).cuda()
        self.small = torch.zeros(1024, device="cuda")
        self.graph = self._capture()
        self.profiler: torch.profiler.profile | None = None
        self.do_steps(5)

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.small.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_KERNELS):
                self.small.add_(1)
        return graph

    def do_steps(self, count: int) -> dict[str, Any]:
        """Forward, backward, update and one `.item()` a step."""
        begin = time.monotonic()
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            loss.item()
        torch.cuda.synchronize()
        return {"steps": count, "s": time.monotonic() - begin}

    def do_steps_for(self, seconds: float) -> dict[str, Any]:
        """As many steps as fit."""
        until, steps = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            self.do_steps(1)
            steps += 1
        return {"steps": steps}

    def do_replays(self, count: int) -> dict[str, Any]:
        """Replays of the graph."""
        for _ in range(count):
            self.graph.replay()
        torch.cuda.synchronize()
        return {"replays": count, "kernels": count * GRAPH_KERNELS}

    def do_profile_begin(self) -> dict[str, Any]:
        """Start torch.profiler."""
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self.profiler.start()
        return {}

    def do_profile_end(self) -> dict[str, Any]:
        """What torch.profiler has seen since."""
        assert self.profiler is not None
        self.profiler.stop()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        counts = Counter(event.get("cat") for event in events if event.get("ph") == "X")
        kernels = [e["dur"] for e in events if e.get("cat") == "kernel" and e.get("ph") == "X"]
        return {
            **{name: counts[name] for name in CATEGORIES},
            "driver_calls": counts["cuda_driver"],
            "kernel_us": sum(kernels),
        }


def main() -> None:
    """Answer each line."""
    work = Work()
    print(json.dumps({"pid": os.getpid(), "thread": threading.get_ident()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(work, f"do_{command.pop('do')}")(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
