"""What span publication adds to a request of a whole service: examples/inference on the fake driver.

Run: python -m tests.benchmarks.bench_service_spans [--pairs N]

Server, worker and tracing are in this process, in which publication is switched on and off in blocks A B B A; the
caller is a process of its own. It makes one call at a time, so that every block does exactly the same: 20 requests,
20 prompts, 210 steps of decoding, each a span. Prints CPU time of this process a request, medians, and the share that
publication takes with its 95 % interval. Requests a second and core are the inverse.
"""

from __future__ import annotations

import argparse
import contextvars
import ctypes
import gc
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext as Runtime
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from otel_gpuflame.instrument import GpuflameSpanProcessor, install
from tests.benchmarks.paired import interval_of
from tests.fakes.build import build_fakes, fake_environment

_INFERENCE: Final = Path(__file__).parents[2] / "examples" / "inference"
_REQUESTS: Final = 20
_RESTARTED: Final = "OGF_BENCH_ON_FAKE"


class Switch(SpanProcessor):
    """Publication as a whole: the hooks, and the span processor that `instrument()` adds."""

    def __init__(self) -> None:
        original = Runtime.attach, Runtime.detach, contextvars.Context.run
        if not install():
            sys.exit("span publication is off; build the library with: make native")
        hooked = Runtime.attach, Runtime.detach, contextvars.Context.run
        self._methods = {True: hooked, False: original}
        (self._of_context,) = gc.get_referents(contextvars.Context.__dict__)
        self._processor = GpuflameSpanProcessor()
        self._is_on = True

    def turn(self, *, on: bool) -> None:
        """Leave everything else as it is."""
        self._is_on = on
        Runtime.attach, Runtime.detach, run = self._methods[on]  # type: ignore[method-assign]
        self._of_context["run"] = run
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(contextvars.Context))

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """As the SDK calls it."""
        if self._is_on:
            self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """As the SDK calls it."""
        if self._is_on:
            self._processor.on_end(span)  # type: ignore[arg-type]


def start_service(switch: Switch) -> int:
    """The example's service in threads of this process; its port."""
    provider = TracerProvider()
    provider.add_span_processor(switch)
    trace.set_tracer_provider(provider)
    sys.path.append(str(_INFERENCE))
    # Of the example, which is no package.
    from driver_model import DriverModel  # type: ignore[import-not-found]  # noqa: PLC0415
    from serve import Service  # type: ignore[import-not-found]  # noqa: PLC0415
    from worker import Worker  # type: ignore[import-not-found]  # noqa: PLC0415

    worker = Worker(DriverModel())
    worker.start()
    worker.ready.wait()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=Service(worker, 0).run, args=(listener,), daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def block_us(port: int) -> float:
    """CPU time of a request in microseconds."""
    begin_ns = time.process_time_ns()
    command = [sys.executable, _INFERENCE / "load.py", "--port", port]
    size = ["--requests", _REQUESTS, "--callers", 1]
    subprocess.run(list(map(str, [*command, *size])), check=True, stdout=subprocess.DEVNULL)
    return (time.process_time_ns() - begin_ns) / _REQUESTS / 1000


def main() -> None:
    """Measure pairs of blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    pairs: int = parser.parse_args().pairs
    if _RESTARTED not in os.environ:
        # The dynamic linker reads its path when a program starts.
        environment = {**fake_environment(build_fakes()), _RESTARTED: "1"}
        module = [sys.executable, "-m", "tests.benchmarks.bench_service_spans"]
        os.execve(sys.executable, [*module, *sys.argv[1:]], environment)
    switch = Switch()
    port = start_service(switch)
    block_us(port)
    found: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for on in (False, True) if pair % 2 else (True, False):
            switch.turn(on=on)
            found[on].append(block_us(port))
    off, on_us = (statistics.median(found[on]) for on in (False, True))
    logs = np.log(np.array(found[True]) / np.array(found[False]))
    share = interval_of(logs)
    print(
        f"CPU time of a request, medians of {pairs} blocks: {off:.0f} µs without, {on_us:.0f} µs with"
    )
    print(f"of it publication: {share.value:.2%} ({share.low:.2%} to {share.high:.2%})")
    print(f"median of the pairs' ratios: {np.exp(np.median(logs)):.4f}")


if __name__ == "__main__":
    main()
