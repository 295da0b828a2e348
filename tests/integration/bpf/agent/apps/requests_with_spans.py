# SPDX-License-Identifier: Apache-2.0
"""Target program: requests with a span each, which it sends to a Collector, and the GPU work in a span below it.

Usage: requests_with_spans.py ENDPOINT [--hold]. Prints ids of the requests' spans by trace id.
"""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_gpuflame.instrument import GpuflameInstrumentor
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

REQUESTS = 8


def main() -> None:
    """Serve, and print the truth."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("endpoint", help="http://host:port of OTLP over HTTP")
    options = parser.parse_args()
    provider = TracerProvider(resource=Resource.create())
    exporter = OTLPSpanExporter(f"{options.endpoint}/v1/traces", timeout=60)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    GpuflameInstrumentor().instrument()
    tracer = trace.get_tracer("requests")
    cuda = FakeCuda()
    app_common.hold(options)
    spans = {}
    for _ in range(REQUESTS):
        with tracer.start_as_current_span("request") as request:
            with tracer.start_as_current_span("model"):
                cuda.launch_many(app_common.KERNEL, 1)
                cuda.synchronize()
            context = request.get_span_context()
            spans[f"{context.trace_id:032x}"] = f"{context.span_id:016x}"
    provider.shutdown()
    app_common.emit({"pid": os.getpid(), "spans": spans})


if __name__ == "__main__":
    app_common.run(main)
