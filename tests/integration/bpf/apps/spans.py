# SPDX-License-Identifier: Apache-2.0
"""Target program: threads with spans of their own, side by side, and work outside of any span."""

from __future__ import annotations

import os
import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_gpuflame.instrument import install
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

ROUNDS = 50
KERNEL_NS = 200_000
UNSAMPLED = SpanContext(
    trace_id=0xA5A5 << 64 | 0x5A5A, span_id=0xBEEF, is_remote=False, trace_flags=TraceFlags(0)
)

Work = dict[str, object]


def ids(span: trace.Span) -> Work:
    """Ids of a span, in hex."""
    context = span.get_span_context()
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }


class Request:
    """One thread's request: a root span, in each round a child span, and work in both."""

    def __init__(self, cuda: FakeCuda, name: str, launches: int, turn: threading.Barrier) -> None:
        self.cuda = cuda
        self.name = name
        self.launches = launches
        self.turn = turn
        self.stream = cuda.create_stream()
        self.truth: list[Work] = []

    def run(self) -> None:
        """The thread's work. All threads begin each round together, so that their spans overlap."""
        self.cuda.bind_thread()
        tracer = trace.get_tracer(__name__)
        with tracer.start_as_current_span(self.name) as root:
            for _ in range(ROUNDS):
                self.turn.wait()
                self.work()
            self.note(root, root, ROUNDS)
            with tracer.start_as_current_span(f"{self.name} child") as child:
                self.work()
                self.note(child, root, 1)

    def work(self) -> None:
        """`launches` kernels and one wait."""
        for _ in range(self.launches):
            self.cuda.launch(app_common.KERNEL, self.stream)
        self.cuda.synchronize(self.stream)

    def note(self, span: trace.Span, root: trace.Span, times: int) -> None:
        """Write down what `span` did."""
        counts = {"launches": times * self.launches, "waits": times}
        local_root = {"root_span_id": ids(root)["span_id"]}
        self.truth.append({"tid": threading.get_native_id(), **ids(span), **local_root, **counts})


def main() -> None:
    """Run two requests, then work outside of any span, then in a span that is not sampled."""
    options = app_common.parser(__doc__ or "").parse_args()
    trace.set_tracer_provider(TracerProvider())
    publishes = install()
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, KERNEL_NS)
    turn = threading.Barrier(2)
    requests = [Request(cuda, f"request {count}", count, turn) for count in (2, 3)]
    outside, unsampled = (Request(cuda, "none", count, turn) for count in (5, 7))
    app_common.hold(options)
    threads = [threading.Thread(target=request.run) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outside.work()
    with trace.use_span(NonRecordingSpan(UNSAMPLED)):
        unsampled.work()
    app_common.emit(
        {
            "pid": os.getpid(),
            "publishes": publishes,
            "spans": [work for request in requests for work in request.truth],
            "outside": {"launches": outside.launches, "waits": 1},
            "unsampled": {"launches": unsampled.launches, "waits": 1},
        }
    )


if __name__ == "__main__":
    app_common.run(main)
