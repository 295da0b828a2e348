"""The thread that owns the model, and serves all requests that are in progress at once (continuous batching)."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from opentelemetry import context, trace

from otel_gpuflame.instrument import batch

MAX_BATCH: Final = 16
MAX_PROMPT_TOKENS: Final = 512
MAX_NEW_TOKENS: Final = 512

tracer = trace.get_tracer("inference")


class Model(Protocol):
    """Keeps what it has read of up to `MAX_BATCH` texts, each in a slot. All methods are called in one thread."""

    def warm_up(self) -> None:
        """Do everything that takes long the first time."""

    def prefill(self, slot: int, prompt_tokens: int) -> None:
        """Read a new text into a slot; does not wait for the GPU."""

    def decode(self, slots: list[int]) -> list[int]:
        """One more token for each of these texts: waits for the GPU."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One that is being served, until there are as many `tokens` as it wants."""

    prompt_tokens: int
    new_tokens: int
    context: context.Context
    loop: asyncio.AbstractEventLoop
    done: asyncio.Event
    tokens: list[int] = field(default_factory=list)
    slot: int = -1

    def finish(self) -> None:
        """Let the front answer."""
        with suppress(RuntimeError):  # The service is being stopped.
            self.loop.call_soon_threadsafe(self.done.set)


class Worker(threading.Thread):
    """Reads the prompts of new requests, and decodes for all of them at once. Without it there is no service."""

    def __init__(self, model: Model) -> None:
        super().__init__(name="worker", daemon=True)
        self._model = model
        self._free_slots = list(range(MAX_BATCH))
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.ready = threading.Event()

    def run(self) -> None:
        """Serve for ever."""
        try:
            with tracer.start_as_current_span("warm_up"):
                self._model.warm_up()
            self.ready.set()
            self._serve()
        except Exception:
            # Requests would wait for ever, and only a new process gets a new GPU context.
            traceback.print_exc()
            os._exit(1)

    def _serve(self) -> None:
        running: list[Request] = []
        while True:
            while self._free_slots and not (running and self.waiting.empty()):
                request = self.waiting.get()
                self.prefill(request)
                running.append(request)
            self.decode(running)
            for request in running:
                if len(request.tokens) == request.new_tokens:
                    self._free_slots.append(request.slot)
                    request.finish()
            running = [each for each in running if len(each.tokens) < each.new_tokens]

    def prefill(self, request: Request) -> None:
        """Work for one request: under its own span."""
        request.slot = self._free_slots.pop()
        with tracer.start_as_current_span("prefill", context=request.context):
            self._model.prefill(request.slot, request.prompt_tokens)

    def decode(self, running: list[Request]) -> None:
        """One token for each request: work for all of them, that is divided by their lengths."""
        weights = [request.prompt_tokens + len(request.tokens) for request in running]
        with batch([request.context for request in running], weights):
            tokens = self._model.decode([request.slot for request in running])
        for request, token in zip(running, tokens, strict=True):
            request.tokens.append(token)
