"""An instrumented inference service: FastAPI in front, and a thread that serves requests in batches.

Each request is a span of the server, with its prompt's work under it. Decoding goes on in steps, each
for all requests that are in progress (continuous batching): a step is a span of its own, linked to
its members. Every launch is so on the span that it was made for.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path

from opentelemetry import context, trace
from traces_file import start_tracing
from worker import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, Model, Request, Worker

from otel_gpuflame.instrument import GpuflameInstrumentor

try:
    import uvicorn
    from fastapi import FastAPI
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    from pydantic import BaseModel, Field
except ImportError as error:
    sys.exit(
        f"inference: {error.name} is missing: "
        "pip install fastapi uvicorn opentelemetry-instrumentation-fastapi"
    )

EXAMPLES = """\
examples:
  python examples/inference/serve.py                  serve on 127.0.0.1:8080, with PyTorch on a GPU
  python examples/inference/serve.py --device cpu     without one
  python examples/inference/serve.py --device driver  without PyTorch: kernels through the CUDA driver
  curl --json '{"prompt_tokens": 100, "new_tokens": 20}' http://127.0.0.1:8080/infer

  sudo otel-gpuflame record -o service.ogfcap -- \\
      python examples/inference/serve.py --requests 128 --traces service.json
  python examples/inference/load.py --requests 128 --traces callers.json     in another terminal
  cat service.json callers.json > traces.json
  otel-gpuflame replay service.ogfcap --traces traces.json --endpoint http://127.0.0.1:4317
"""


class Prompt(BaseModel):
    """How long a text to read, and how much to add to it. The text itself does not matter here."""

    prompt_tokens: int = Field(ge=1, le=MAX_PROMPT_TOKENS)
    new_tokens: int = Field(ge=1, le=MAX_NEW_TOKENS)


class Service:
    """Serves until it is stopped, or has answered so many requests (0: any number)."""

    def __init__(self, worker: Worker, requests: int) -> None:
        self._worker = worker
        self._left = requests
        self.app = FastAPI(title="inference")
        self.app.post("/infer")(self.infer)
        # Without spans for each message between server and application.
        FastAPIInstrumentor.instrument_app(self.app, exclude_spans=["receive", "send"])
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning"))

    async def infer(self, prompt: Prompt) -> dict[str, list[int]]:
        """The request's span lasts until its last token is there."""
        request = Request(
            prompt_tokens=prompt.prompt_tokens,
            new_tokens=prompt.new_tokens,
            context=context.get_current(),
            loop=asyncio.get_running_loop(),
            done=asyncio.Event(),
        )
        self._worker.waiting.put(request)
        await request.done.wait()
        self._left -= 1
        if self._left == 0:
            self._server.should_exit = True  # When all answers are sent.
        return {"tokens": request.tokens}

    def run(self, listener: socket.socket) -> None:
        """Serve; all requests that came in are answered before this returns."""
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[listener])


def make_model(device: str, layers: int, width: int) -> Model:
    """PyTorch is imported only where it is used."""
    if device == "driver":
        from driver_model import DriverModel  # noqa: PLC0415

        return DriverModel()
    from torch_model import TorchModel  # noqa: PLC0415

    return TorchModel(device, layers, width)


def options_from_command_line() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="0: any (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=0, help="end when so many are answered")
    parser.add_argument("--traces", type=Path, help="write spans to this file, as OTLP JSON")
    parser.add_argument("--device", choices=("cuda", "cpu", "driver"), default="cuda")
    parser.add_argument("--layers", type=int, default=4, help="of the model (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="likewise (default: %(default)s)")
    options = parser.parse_args()
    if options.layers < 1 or options.width < 1 or options.width % 64:
        parser.error("--layers must be at least 1, and --width a multiple of 64")
    return options


def main() -> None:
    """Set up tracing unless `opentelemetry-instrument` did, load the model, and serve."""
    options = options_from_command_line()
    provider = start_tracing("inference", options.traces)
    GpuflameInstrumentor().instrument()
    with trace.get_tracer("inference").start_as_current_span("load_model"):
        model = make_model(options.device, options.layers, options.width)
    worker = Worker(model)
    worker.start()
    worker.ready.wait()
    service = Service(worker, options.requests)
    listener = socket.create_server(("127.0.0.1", options.port))
    # Connections inherit it. An answer is two small writes, and asyncio does not see that this is TCP: without it the
    # second one waits for the caller's acknowledgement, up to 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    service.run(listener)
    provider.shutdown()


if __name__ == "__main__":
    main()
