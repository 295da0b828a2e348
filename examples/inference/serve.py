"""An instrumented inference service: an asyncio front, and a thread that serves requests in batches.

Each request is a span of the server, with its prompt's work under it. Decoding goes on in steps, each
for all requests that are in progress (continuous batching): a step is a span of its own, linked to
its members. Every launch is so on the span that it was made for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device import Device
from opentelemetry import context, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind
from traces_file import TracesFile

from otel_gpuflame.instrument import GpuflameInstrumentor, batch

EXAMPLES = """\
examples:
  python examples/inference/serve.py                  serve on 127.0.0.1:8080
  curl -d '{"prompt_tokens": 100, "new_tokens": 20}' http://127.0.0.1:8080/infer

  sudo otel-gpuflame record -o service.ogfcap -- \\
      python examples/inference/serve.py --requests 64 --traces traces.json
  otel-gpuflame replay service.ogfcap --traces traces.json --endpoint http://127.0.0.1:4317
"""

PREFILL, ATTENTION, FEED_FORWARD = KERNELS = "prefill", "attention", "feed_forward"
LAYERS = 4
MAX_BATCH = 16
BYTES_A_TOKEN = 64
MAX_TOKENS = 4096
MAX_BODY_BYTES = 4096

tracer = trace.get_tracer("inference")


@dataclass(slots=True, kw_only=True)
class Request:
    """One that is being served. `left` tokens are still to come."""

    prompt_tokens: int
    left: int
    context: context.Context
    loop: asyncio.AbstractEventLoop
    done: asyncio.Event

    def finish(self) -> None:
        """Let the front answer."""
        with suppress(RuntimeError):  # The service is being stopped.
            self.loop.call_soon_threadsafe(self.done.set)


class Worker(threading.Thread):
    """Fills the prompts of new requests, and decodes for all of them at once."""

    def __init__(self, device: Device) -> None:
        super().__init__(name="worker", daemon=True)
        self._device = device
        self.waiting: queue.Queue[Request] = queue.Queue()

    def run(self) -> None:
        """Serve for ever."""
        self._device.bind_thread()
        running: list[Request] = []
        while True:
            while len(running) < MAX_BATCH and not (running and self.waiting.empty()):
                request = self.waiting.get()
                self.prefill(request)
                running.append(request)
            self.decode(running)
            for request in running:
                if request.left == 0:
                    request.finish()
            running = [request for request in running if request.left]

    def prefill(self, request: Request) -> None:
        """Work for one request: under its own span."""
        with tracer.start_as_current_span("prefill", context=request.context):
            self._device.upload(bytes(BYTES_A_TOKEN * request.prompt_tokens))
            for _ in range(LAYERS):
                self._device.launch(PREFILL, rounds=100 * request.prompt_tokens)

    def decode(self, running: list[Request]) -> None:
        """One token for each request: work for all of them, that is divided by their lengths."""
        weights = [request.prompt_tokens for request in running]
        with batch([request.context for request in running], weights):
            for _ in range(LAYERS):
                self._device.launch(ATTENTION, rounds=10 * sum(weights))
                self._device.launch(FEED_FORWARD, rounds=1000)
            self._device.synchronize()
        for request in running:
            request.left -= 1


class Front:
    """HTTP: a connection is a task, and a request on it a span."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request."""
        try:
            headers, body = await read_request(reader)
            status, answer = await self.infer(headers, body)
        except (ValueError, TypeError, KeyError, asyncio.IncompleteReadError) as error:
            status, answer = "400 Bad Request", {"error": str(error)}
        text = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
        with suppress(ConnectionError):
            writer.write(head.encode() + text)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def infer(self, headers: dict[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
        """The request's span lasts until its last token is there."""
        options = json.loads(body)
        prompt_tokens, new_tokens = (int(options[key]) for key in ("prompt_tokens", "new_tokens"))
        if not (0 < prompt_tokens <= MAX_TOKENS and 0 < new_tokens <= MAX_TOKENS):
            raise ValueError(f"both numbers of tokens are from 1 to {MAX_TOKENS}")
        with tracer.start_as_current_span(
            "POST /infer", context=propagate.extract(headers), kind=SpanKind.SERVER
        ):
            request = Request(
                prompt_tokens=prompt_tokens,
                left=new_tokens,
                context=context.get_current(),
                loop=asyncio.get_running_loop(),
                done=asyncio.Event(),
            )
            self._worker.waiting.put(request)
            await request.done.wait()
        return "200 OK", {"tokens": new_tokens}


async def read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """Headers in lower case, and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    size_bytes = int(headers.get("content-length", 0))
    if not 0 <= size_bytes <= MAX_BODY_BYTES:
        raise ValueError("the body is too long")
    return headers, await reader.readexactly(size_bytes)


async def ask(port: int, number: int) -> None:
    """One request of the built-in client; their sizes differ."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt_tokens": 10 + number % 50, "new_tokens": 1 + number % 20}).encode()
    writer.write(b"POST /infer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    answer = await reader.read()
    writer.close()
    if b"200 OK" not in answer:
        sys.exit(f"inference: request {number} failed: {answer.decode('latin-1')}")


async def serve(port: int, requests: int) -> None:
    """Serve for ever, or `requests` of the built-in client, all at once."""
    worker = Worker(Device(KERNELS))
    worker.start()
    server = await asyncio.start_server(Front(worker).connected, "127.0.0.1", port)
    async with server:
        bound = server.sockets[0].getsockname()[1]
        print(f"serving on http://127.0.0.1:{bound}", flush=True)
        if not requests:
            await server.serve_forever()
        await asyncio.gather(*(ask(bound, number) for number in range(requests)))
    print(f"{requests} requests served")


def main() -> None:
    """Parse the command line, set up tracing unless `opentelemetry-instrument` did, and serve."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="0: any (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=0, help="serve so many of its own, and end")
    parser.add_argument("--traces", type=Path, help="write spans to this file, as OTLP JSON")
    options = parser.parse_args()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": "inference"}))
        trace.set_tracer_provider(provider)
    if options.traces is not None:
        provider.add_span_processor(SimpleSpanProcessor(TracesFile(options.traces)))
    GpuflameInstrumentor().instrument()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(0 if options.requests else options.port, options.requests))
    provider.shutdown()


if __name__ == "__main__":
    main()
