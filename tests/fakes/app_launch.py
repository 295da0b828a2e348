"""Target program: makes an exact number of kernel launches and prints the truth as a JSON line."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Iterator

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

SpanIds = dict[str, str]


def launch_loop(cuda: FakeCuda, count: int, rate_per_s: float | None) -> int:
    """The frame that a profile shows above the launches."""
    return cuda.launch_many(app_common.KERNEL, count, rate_per_s=rate_per_s)


@contextlib.contextmanager
def active_span(*, wanted: bool) -> Iterator[SpanIds]:
    """An OpenTelemetry span around the launches of one thread; yields its ids in hex."""
    if not wanted:
        yield {}
        return
    from opentelemetry import trace  # noqa: PLC0415 - only programs with spans need the SDK

    with trace.get_tracer(__name__).start_as_current_span("launch_loop") as span:
        context = span.get_span_context()
        yield {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }


def start_tracing() -> bool:
    """Set up the SDK without an exporter, then the product's span publication."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    trace.set_tracer_provider(TracerProvider())
    return app_common.install_instrumentation()


def launch_in_thread(
    cuda: FakeCuda, options: argparse.Namespace, count: int, truth: list[dict[str, object]]
) -> None:
    """One thread's share."""
    cuda.bind_thread()
    with active_span(wanted=options.span) as ids:
        launched = launch_loop(cuda, count, options.rate and options.rate / options.threads)
    truth.append({"tid": threading.get_native_id(), "launches": launched, **ids})


def shares(count: int, parts: int) -> list[int]:
    """Split so that the parts add up exactly."""
    return [count // parts + (index < count % parts) for index in range(parts)]


def options_from_command_line() -> argparse.Namespace:
    """Parse the command line."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("count", type=int, help="launches in all")
    parser.add_argument("--rate", type=float, help="launches a second in all; default: no limit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--span", action="store_true", help="an OpenTelemetry span in each thread")
    options = parser.parse_args()
    if options.count < 0 or options.threads < 1 or (options.rate is not None and options.rate <= 0):
        parser.error("count must not be negative, --threads at least 1, --rate above 0")
    return options


def main() -> None:
    """Launch and print the truth."""
    options = options_from_command_line()
    publishes = start_tracing() if options.span else False
    cuda = FakeCuda()
    app_common.hold(options)
    cuda.function(app_common.KERNEL)
    truth: list[dict[str, object]] = []
    threads = [
        threading.Thread(target=launch_in_thread, args=(cuda, options, count, truth))
        for count in shares(options.count, options.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app_common.emit(
        {
            "pid": os.getpid(),
            "kernel": app_common.KERNEL,
            "launches": cuda.counters().launches,
            "threads": truth,
            "publishes_span": publishes,
        }
    )


if __name__ == "__main__":
    app_common.run(main)
