"""Backward work of a real PyTorch on a real GPU: each launch under its line and on its span.

    make bpf native && python -m tests.integration.gpu.autograd_smoke

Records app_autograd.py, two threads whose passes overlap and nest on one GPU, and prints one JSON object. Wrong is a
launch with a kernel on `double` in the stack of the thread that uses none, or on a span of the other thread. Needs
root and torch with CUDA; takes about 30 s. Exit status 1 where "ok" is false.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.events.frames import FrameKind, Stack, StackKey
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.symbolize.demangle import Demangler
from tests.integration.bpf.recording import ROOT, Recording, record

_APP: Final = Path(__file__).with_name("app_autograd.py")
_THREADS: Final = ("train_double", "train_float")
_MAX_SHARE_WITHOUT_PYTHON: Final = 0.01
_MAX_SHARE_WITHOUT_SPAN: Final = 0.1
"""Of steps made before the recorder has found that the program publishes its spans."""


def functions_of(stack: Stack) -> set[str]:
    """Names of the program's own Python functions in a stack."""
    return {
        frame.name.rpartition(".")[2]
        for frame in stack.frames
        if frame.kind is FrameKind.PYTHON and frame.file.endswith(_APP.name)
    }


def look(recording: Recording) -> dict[str, Any]:
    """What the capture says of each launch, held against the truth."""
    truth, capture = recording.truth, recording.capture
    demangle = Demangler().demangle
    names = {name.handle: demangle(name.name) for name in capture.names}
    span_of = {span: thread for thread, spans in truth["spans"].items() for span in spans}
    count: Counter[str] = Counter()
    without_python: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for row in capture.kind(Kind.LAUNCH):
        count["launches"] += 1
        stack = capture.stacks[StackKey(*row["stack_hash"].tolist())]
        functions = functions_of(stack)
        threads = [thread for thread in _THREADS if thread in functions]
        in_device_thread = int(row["tid"]) not in truth["tids"]
        count["by_device_threads"] += in_device_thread
        if not any(frame.kind is FrameKind.PYTHON for frame in stack.frames):
            count["without_python"] += 1
            without_python[" ".join(frame.name for frame in stack.frames)[:300]] += 1
        if not threads:
            continue
        thread = threads[0]
        count["wrong_line"] += len(threads) > 1
        kind = "backward" if any(f.startswith("backward_") for f in functions) else "forward"
        count[f"{thread}_{kind}"] += 1
        count[f"{thread}_{kind}_by_device_threads"] += in_device_thread
        kernel = names.get(int(row["object"]), "")
        count["double"] += "double" in kernel
        if "double" in kernel and thread == "train_float":
            count["wrong_line"] += 1
            wrong[kernel[:300]] += 1
        if row["flags"] & CallFlag.HAS_SPAN:
            count["with_span"] += 1
            count["wrong_span"] += span_of.get(row["span_id"].tobytes().hex()) != thread
        else:
            count["without_span"] += kind == "backward" and bool(span_of)
    return {
        "counts": dict(sorted(count.items())),
        "without_python": without_python.most_common(3),
        "wrong": wrong.most_common(3),
        "passes": {o: capture.count("backward", o) for o in ("seen", "sent", "unreadable")},
    }


def is_good(found: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether everything that must hold does."""
    count: Counter[str] = Counter(found["counts"])
    lines = [f"{thread}_{kind}" for thread in _THREADS for kind in ("forward", "backward")]
    return (
        truth["errors"] == []
        and count["without_python"] <= _MAX_SHARE_WITHOUT_PYTHON * count["launches"]
        and all(count[line] for line in lines)
        and all(count[f"{thread}_backward_by_device_threads"] for thread in _THREADS)
        and count["double"] > 0
        and count["wrong_line"] == count["wrong_span"] == 0
        and count["without_span"] <= _MAX_SHARE_WITHOUT_SPAN * count["launches"]
        and found["passes"]["unreadable"] == 0
    )


def main() -> None:
    """Record, look, and say what was found."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "autograd.ogfcap"
        options = ("--no-gpu", "--no-cpu", "--no-driver")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = (sys.executable, _APP, *sys.argv[1:])
        recording = record(output, *command, environment=environment, options=options)
        if recording.exit_code or not recording.truths:
            print(json.dumps({"ok": False, "error": recording.stderr[-2000:]}))
            sys.exit(1)
        found = look(recording)
    good = is_good(found, recording.truth)
    seconds = round(time.monotonic() - began_s, 1)
    about = {"torch": recording.truth["torch"], "errors": recording.truth["errors"]}
    print(json.dumps({"ok": good, "seconds": seconds, **about, **found}, indent=1))
    sys.exit(not good)


if __name__ == "__main__":
    main()
