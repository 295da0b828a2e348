# SPDX-License-Identifier: Apache-2.0
"""Target program: 64 requests at a time as tasks, as threads and in a pool, each with its own number of launches."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider

from otel_gpuflame.instrument import batch, install
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

REQUESTS = 64
ROUNDS = 4
POOL_THREADS = 8
KERNEL_NS = 20_000
BATCH_SIZES = (*range(1, 11), 9)
"""As many members as there are requests."""


class Service:
    """Serves requests in different ways, and knows what each span of them launched."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.stream = cuda.create_stream()
        self.roots: dict[str, str] = {}
        self.launches: Counter[str] = Counter()
        self.outside = 0
        self._lock = threading.Lock()

    def launch(self, times: int) -> None:
        """Launches, noted under the span that OpenTelemetry says is current."""
        for _ in range(times):
            self.cuda.launch(app_common.KERNEL, self.stream)
        span = trace.get_current_span().get_span_context()
        with self._lock:
            if span.is_valid:
                self.launches[trace.format_span_id(span.span_id)] += times
            else:
                self.outside += times

    @contextmanager
    def span(self, name: str, root: str | None = None) -> Iterator[str]:
        """A current span; yields the id of its local root."""
        with trace.get_tracer(__name__).start_as_current_span(name) as span:
            span_id = trace.format_span_id(span.get_span_context().span_id)
            self.roots[span_id] = root or span_id
            yield self.roots[span_id]

    def rounds(self, number: int, pause: Callable[[], None]) -> None:
        """A request in a thread of its own, or in one of a pool."""
        with self.span(f"request {number}") as root:
            for _ in range(ROUNDS):
                self.launch(1 + number % 7)
                pause()
                with self.span("part", root):
                    self.launch(1 + number % 3)
                    pause()

    async def task(self, number: int) -> None:
        """A request as a task: between any two launches others have their turn."""
        loop = asyncio.get_running_loop()
        with self.span(f"request {number}") as root:
            for _ in range(ROUNDS):
                self.launch(1 + number % 7)
                await asyncio.sleep(0)
                with self.span("part", root):
                    self.launch(1 + number % 3)
                    await asyncio.gather(self.child(root), self.child(root), asyncio.sleep(0.001))
                    self.launch(1)
                    await asyncio.to_thread(self.launch, 2)
                loop.call_soon(self.launch, 1, context=contextvars.Context())
                self.launch(1)

    async def child(self, root: str) -> None:
        """A task of a task, with a span of its own on both sides of an await."""
        with self.span("child", root):
            self.launch(1)
            await asyncio.sleep(0)
            self.launch(1)

    def as_tasks(self, run: Callable[[Awaitable[None]], object]) -> None:
        """All requests on one event loop."""

        async def main() -> None:
            pool = ThreadPoolExecutor(POOL_THREADS, initializer=self.cuda.bind_thread)
            asyncio.get_running_loop().set_default_executor(pool)
            await asyncio.gather(*(self.task(number) for number in range(REQUESTS)))

        run(main())

    def as_threads(self) -> None:
        """A thread for each request; all are in the same round together."""
        turn = threading.Barrier(REQUESTS)

        def work(number: int) -> None:
            self.cuda.bind_thread()
            self.rounds(number, lambda: void(turn.wait()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(REQUESTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def in_pool(self) -> None:
        """A few threads for all; the caller's Context goes along, attached or run in."""

        def handed_over(outer: context.Context, number: int) -> None:
            token = context.attach(outer)
            try:
                self.rounds(number, lambda: None)
            finally:
                context.detach(token)
            self.launch(1)

        with ThreadPoolExecutor(POOL_THREADS, initializer=self.cuda.bind_thread) as pool:
            for number in range(REQUESTS):
                if number % 2:
                    pool.submit(contextvars.copy_context().run, self.rounds, number, lambda: None)
                else:
                    pool.submit(handed_over, context.get_current(), number)

    def in_batches(self) -> None:
        """A front of tasks, and a thread that serves what waits, several at once."""
        waiting: queue.Queue[tuple[context.Context, Callable[[], object]]] = queue.Queue()

        def serve() -> None:
            self.cuda.bind_thread()
            for size in BATCH_SIZES:
                members = [waiting.get() for _ in range(size)]
                weights = range(1, size + 1)
                with batch([member for member, _ in members], weights) as span:
                    span_id = trace.format_span_id(span.get_span_context().span_id)
                    self.roots[span_id] = span_id
                    self.launch(size)
                for _, done in members:
                    done()
                self.launch(1)

        async def request(number: int) -> None:
            loop = asyncio.get_running_loop()
            with self.span(f"request {number}"):
                self.launch(1)
                served = asyncio.Event()
                done = functools.partial(loop.call_soon_threadsafe, served.set)
                waiting.put((context.get_current(), done))
                await served.wait()
                self.launch(1)

        async def front() -> None:
            await asyncio.gather(*(request(number) for number in range(REQUESTS)))

        worker = threading.Thread(target=serve)
        worker.start()
        asyncio.run(front())
        worker.join()


def void(_: object) -> None:
    """Drops a value."""


def uvloop_runner() -> Callable[[Awaitable[None]], object] | None:
    """Runs a coroutine on uvloop, where that is installed."""
    try:
        import uvloop  # noqa: PLC0415 - it may be missing
    except ImportError:
        return None
    return uvloop.new_event_loop().run_until_complete  # type: ignore[no-any-return]


def main() -> None:
    """Serve the requests in every way."""
    options = app_common.parser(__doc__ or "").parse_args()
    trace.set_tracer_provider(TracerProvider())
    publishes = install()
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, KERNEL_NS)
    service = Service(cuda)
    on_uvloop = uvloop_runner()
    app_common.hold(options)
    while True:
        service.as_threads()
        service.in_pool()
        service.in_batches()
        service.as_tasks(asyncio.run)
        if on_uvloop is not None:
            service.as_tasks(on_uvloop)
        told = {
            "publishes": publishes,
            "roots": service.roots,
            "launches": service.launches,
            "outside": service.outside,
        }
        if not app_common.emit(told):
            return


if __name__ == "__main__":
    app_common.run(main)
