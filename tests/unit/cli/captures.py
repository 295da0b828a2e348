"""A hand-made recording, as a file, and the command line to run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from otel_gpuflame.cli.main import cli
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.frames import Frame, FrameKind, Stack, StackKey, mark
from otel_gpuflame.events.records import (
    CaptureStart,
    Event,
    HandleName,
    Names,
    Stacks,
    Watermark,
)
from otel_gpuflame.events.wire import CallFlag
from tests.unit.profile.builders import (
    OTHER,
    PROCESS,
    ROOT_ID,
    SAMPLED,
    SPAN_ID,
    START_NS,
    TRACE_ID,
    UNIX_OFFSET_NS,
    batch,
    call,
    counters,
    target_event,
)

ROOT = Path(__file__).parents[3]
APP, LIBRARY = "/srv/app/train.py", "/opt/venv/lib/python3.12/site-packages/torch/nn/module.py"
MAIN = Frame(FrameKind.PYTHON, "<module>", file=APP, line=120)
STEP = Frame(FrameKind.PYTHON, "Trainer.step", file=APP, line=88)
LOSS = Frame(FrameKind.PYTHON, "Trainer.step", file=APP, line=90)
FORWARD = Frame(FrameKind.PYTHON, "Module.forward", file=LIBRARY, line=7)
NATIVE = Frame(
    FrameKind.NATIVE, "at::sync()", "_ZN2at4syncEv", module="/opt/libtorch.so", address=64
)
STACKS = {
    StackKey(1, 1): (MAIN, STEP, FORWARD, mark("native stack cut"), NATIVE),
    StackKey(1, 2): (MAIN, LOSS),
    StackKey(1, 3): (MAIN, STEP),
    StackKey(1, 4): (Frame(FrameKind.NATIVE, "start_thread", module="/lib/libc.so.6"),),
}
KERNELS = {1: "_Z4gemmv", 2: "_Z4reluv"}
READABLE = {1: "gemm()", 2: "void relu<float>(float*)"}
LINKED: dict[str, Any] = {
    "flags": SAMPLED | CallFlag.HAS_LOCAL_ROOT,
    "trace_id": TRACE_ID,
    "span_id": SPAN_ID,
    "local_root_span_id": ROOT_ID,
}


def recording() -> list[Event]:
    """Launches, waits and copies of two processes, some in a span, and a loss. Several segments."""
    events: list[Event] = [
        CaptureStart(START_NS, UNIX_OFFSET_NS, (("target", "python train.py"),)),
        target_event(PROCESS, "train"),
        target_event(OTHER, "serve"),
        Names(tuple(HandleName(PROCESS, START_NS, h, n, READABLE[h]) for h, n in KERNELS.items())),
        Stacks(tuple(Stack(key, PROCESS, frames) for key, frames in STACKS.items())),
    ]
    keys = list(STACKS)
    for number in range(60):
        at_ns = START_NS + number * 1_000_000_000
        key = keys[number % len(keys)]
        span: dict[str, Any] = LINKED if number % 3 == 0 else {}
        process = OTHER if number % 5 == 4 else PROCESS
        shared: dict[str, Any] = {"key": key, "process": process, "start_ns": at_ns, **span}
        events += [
            batch(
                call("cuLaunchKernel", object=1 + number % 2, **shared),
                call("cuMemcpyDtoH", bytes=1_000 + number, duration_ns=7_001 + number, **shared),
                call(
                    "cuStreamSynchronize",
                    duration_ns=1_000_003 * (number + 1),
                    voluntary_switches=number % 2,
                    **shared,
                ),
            ),
            Watermark(at_ns + 900_000_000),
        ]
    events.append(
        counters(
            START_NS + 61_000_000_000,
            launch={"seen": 63, "sent": 60, "ring_full": 3},
            copy={"seen": 60, "sent": 60},
            wait={"seen": 60, "sent": 60},
        )
    )
    return events


def write_capture(path: Path, events: Iterable[Event] | None = None) -> Path:
    """`events`, by default the whole recording, as a capture file."""
    with path.open("wb") as file:
        writer = CaptureWriter(file, created={"target": "python train.py"})
        for event in recording() if events is None else events:
            writer.write(event)
        writer.close()
    return path


def run(*arguments: str | Path) -> Result:
    """The command line in this process; exceptions that it does not turn into exit codes are raised."""
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


def run_program(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command line as a program of its own."""
    return subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
