"""A target program on a real device that is told what to do, and the lines that are said about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_inject.so"
APP = Path(__file__).with_name("inject_smoke_app.py")
STEPS = 50
COUNTED = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
"""What we call an execution, and torch.profiler does."""


class App:
    """A target program and its answers."""

    def __init__(self, mode: str | None) -> None:
        # What is on the path besides stays there: packages of machines that have them elsewhere.
        path = ":".join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        values = {**os.environ, "PYTHONPATH": path}
        if mode is not None:
            values |= {"CUDA_INJECTION64_PATH": str(LIBRARY), "OTEL_GPUFLAME_INJECT_API": mode}
        self.process = subprocess.Popen(
            [sys.executable, str(APP)],
            env=values,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError(self.process.stderr.read()[-2000:])
        result: dict[str, Any] = json.loads(line)
        return result

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.process.pid

    def end(self) -> tuple[float, int, str]:
        """Seconds until it has ended, its status, its stderr."""
        begin = time.monotonic()
        _, errors = self.process.communicate(timeout=60)
        return time.monotonic() - begin, self.process.returncode, errors


def report(mode: str, what: str, ok: bool, **facts: Any) -> None:
    """One line."""
    print(json.dumps({"mode": mode, "what": what, "ok": bool(ok), **facts}), flush=True)


def profiled_steps(app: App) -> dict[str, Any]:
    """What torch.profiler counts in STEPS steps of training."""
    app.do("profile_begin")
    app.do("steps", count=STEPS)
    return app.do("profile_end")


def is_equal(seen: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether torch.profiler has counted the same twice."""
    return all(seen[name] == plain[name] for name in COUNTED.values())
