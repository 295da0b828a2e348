# SPDX-License-Identifier: Apache-2.0
"""Target program: one backward pass in each phase, whose node launches and waits; it says when one is over."""

from __future__ import annotations

import os
from types import FrameType

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_gpuflame.instrument import install
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.torch_engine import FakeEngine, Node


def main() -> None:
    """Run the phases."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("--phases", type=int, default=2)
    options = parser.parse_args()
    trace.set_tracer_provider(TracerProvider())
    install()
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, 1_000_000)
    engine = FakeEngine(cuda.context, devices=1, max_depth=1, new_thread=lambda: None)
    function = cuda.function(app_common.KERNEL)
    node = Node(function=function, device=0, hook=lambda: cuda.synchronize(0))
    app_common.hold(options)
    for _ in range(options.phases):
        lines: list[int] = []

        def note(inside: FrameType, lines: list[int] = lines) -> None:
            frame: FrameType | None = inside
            while frame is not None:
                lines.insert(0, frame.f_lineno)
                frame = frame.f_back

        with trace.get_tracer(__name__).start_as_current_span("phase") as span:
            engine.backward([node], function, note)
        span_id = trace.format_span_id(span.get_span_context().span_id)
        app_common.emit({"pid": os.getpid(), "lines": lines, "span_id": span_id})


if __name__ == "__main__":
    app_common.run(main)
