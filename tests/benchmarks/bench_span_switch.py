"""What span publication adds to a switch of the current span.

Run: python tests/benchmarks/bench_span_switch.py [LIBRARY]

Both sides run in one process, in ABBA blocks that swap the hooked methods for the original ones, so
that frequency and neighbours hit both alike. Prints medians over the blocks, in nanoseconds of the
thread's CPU time.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext as Runtime
from opentelemetry.sdk.trace import TracerProvider

from otel_gpuflame import instrument

BLOCKS = 100
BLOCK_NS = 5_000_000
TASKS = 64
STEPS = 100


def block_ns_per_call(work: Callable[[], None], calls: int) -> float:
    """Nanoseconds a call, over one block."""
    begin_ns = time.thread_time_ns()
    for _ in range(calls):
        work()
    return (time.thread_time_ns() - begin_ns) / calls


def compare(name: str, work: Callable[[], None], use: Callable[[bool], None]) -> None:
    """Measures `work` without and with the hook, and prints a line."""
    use(True)
    calls = max(1, int(BLOCK_NS / block_ns_per_call(work, 30)))
    without: list[float] = []
    with_hook: list[float] = []
    for block in range(BLOCKS):
        for hooked in (False, True) if block % 2 else (True, False):
            use(hooked)
            (with_hook if hooked else without).append(block_ns_per_call(work, calls))
    use(True)
    pairs = list(zip(without, with_hook, strict=True))
    added = statistics.median(on - off for off, on in pairs)
    ratio = statistics.median(on / off for off, on in pairs)
    off, on = statistics.median(without), statistics.median(with_hook)
    print(f"{name:<44} {off:8.0f} {on:8.0f} {added:+8.0f} {ratio:7.2f}")


def main() -> None:
    """Compares attach and detach alone, and a whole span of the SDK."""
    if len(sys.argv) > 1:
        os.environ["OTEL_GPUFLAME_CONTEXT_LIB"] = sys.argv[1]
    original = Runtime.attach, Runtime.detach, contextvars.Context.run
    if not instrument.install():
        sys.exit("span publication is off; build the library with: make -C otel_gpuflame/native")
    hooked = Runtime.attach, Runtime.detach, contextvars.Context.run
    (methods_of_context,) = gc.get_referents(contextvars.Context.__dict__)

    def use(hook: bool) -> None:
        Runtime.attach, Runtime.detach, run = hooked if hook else original  # type: ignore[method-assign]
        methods_of_context["run"] = run
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(contextvars.Context))

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
    with_span = trace.set_span_in_context(tracer.start_span("span"), Context())
    without_span = Context()

    def switch() -> None:
        context.detach(context.attach(with_span))

    def switch_without_span() -> None:
        context.detach(context.attach(without_span))

    def whole_span() -> None:
        with tracer.start_as_current_span("span"):
            pass

    def nothing() -> None:
        return

    inside = contextvars.Context()
    inside.run(context.attach, with_span)

    def enter_and_leave() -> None:
        inside.run(nothing)

    loop = asyncio.new_event_loop()

    async def steps() -> None:
        for _ in range(STEPS):
            await asyncio.sleep(0)

    async def tasks() -> None:
        with trace.use_span(trace.get_current_span(with_span)):
            await asyncio.gather(*(steps() for _ in range(TASKS)))

    def turns() -> None:
        loop.run_until_complete(tasks())

    print(f"{f'ns a call, medians of {BLOCKS} blocks':<44}  without     with    added   ratio")
    compare("attach + detach of a span", switch, use)
    compare("attach + detach of a Context without span", switch_without_span, use)
    compare("start_as_current_span, SDK, no processor", whole_span, use)
    compare("Context.run of a Context with a span", enter_and_leave, use)
    compare(f"asyncio: {TASKS} tasks, {TASKS * STEPS:,} steps", turns, use)
    compare("empty function (the loop's own share)", nothing, use)


if __name__ == "__main__":
    main()
