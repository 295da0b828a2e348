"""Tasks take turns in a thread; each is seen under its own span, and under nobody else's."""

from __future__ import annotations

import asyncio
import contextvars
import random
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import Tracer

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = 64
Warnings = Callable[[], list[str]]
Main = Coroutine[Any, Any, Any]
eager = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")


def span_id(span: trace.Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def run_with_asyncio(main: Main, debug: bool = False) -> Any:
    """The loop of the standard library."""
    return asyncio.run(main, debug=debug)


def run_with_uvloop(main: Main, debug: bool = False) -> Any:
    """The loop on libuv, whose callbacks enter Contexts in C."""
    import uvloop  # noqa: PLC0415 - it may be missing

    loop = uvloop.new_event_loop()
    loop.set_debug(debug)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture(params=[run_with_asyncio, run_with_uvloop])
def run_loop(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a coroutine to its end on one of the loops."""
    if request.param is run_with_uvloop:
        pytest.importorskip("uvloop")
    run: Callable[..., Any] = request.param
    return run


@pytest.mark.parametrize("debug", [False, True])
def test_interleaved_tasks_keep_their_spans(
    debug: bool, reader: Any, tracer: Tracer, run_loop: Callable[..., Any]
) -> None:
    """64 requests with nested spans and awaits of every kind: the record is right at every step."""
    dice = random.Random(7)

    async def pause() -> None:
        await asyncio.sleep(dice.choice([0, 0, 0.0001]))

    async def part(outer: trace.Span) -> None:
        assert reader.span_id() == span_id(outer)
        with tracer.start_as_current_span("part") as inner:
            await pause()
            assert reader.span_id() == span_id(inner)
        await pause()
        assert reader.span_id() == span_id(outer)

    async def request(number: int) -> None:
        assert reader.span_id() == span_id(around)
        with tracer.start_as_current_span(f"request {number}") as root:
            await asyncio.gather(*(part(root) for _ in range(3)))
            assert reader.span_id() == span_id(root)
            await asyncio.wait_for(part(root), 600)
            task = asyncio.get_running_loop().create_task(part(root))
            await pause()
            assert reader.read().local_root == f"{span_id(around):016x}"
            await task
            assert reader.span_id() == span_id(root)
        assert reader.span_id() == span_id(around)

    async def main() -> None:
        await asyncio.gather(*(request(number) for number in range(REQUESTS)))

    with tracer.start_as_current_span("around") as around:
        run_loop(main(), debug=debug)
        assert reader.span_id() == span_id(around)
    assert reader.span_id() is None


def test_callbacks_run_under_the_span_of_their_context(
    reader: Any, tracer: Tracer, run_loop: Callable[..., Any]
) -> None:
    """A callback may come from another thread with another request's Context."""
    foreign = tracer.start_span("foreign")
    theirs = contextvars.Context()
    theirs.run(context.attach, trace.set_span_in_context(foreign))
    seen: list[int | None] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def look() -> None:
            seen.append(reader.span_id())

        for schedule in (loop.call_soon, loop.call_soon_threadsafe):
            schedule(look, context=theirs)
            schedule(look, context=contextvars.Context())
            schedule(look)
        loop.call_later(0.001, look, context=theirs)
        loop.call_later(0.002, done.set_result, None)
        await done

    with tracer.start_as_current_span("outer") as outer:
        run_loop(main())
        assert reader.span_id() == span_id(outer)
    turn = [span_id(foreign), None, span_id(outer)]
    assert seen == [*turn, *turn, span_id(foreign)]


def test_executors(reader: Any, tracer: Tracer, run_loop: Callable[..., Any]) -> None:
    """`to_thread` takes the request's Context along; `run_in_executor` does not, and has none."""

    async def request() -> None:
        with tracer.start_as_current_span("request") as root:
            assert await asyncio.to_thread(reader.span_id) == span_id(root)
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, reader.span_id) is None
            copied = contextvars.copy_context()
            seen = await loop.run_in_executor(None, copied.run, reader.span_id)
            assert seen == reader.span_id() == span_id(root)

    async def main() -> None:
        await asyncio.gather(*(request() for _ in range(REQUESTS)))

    run_loop(main())


def test_streams_and_async_generators(
    reader: Any, tracer: Tracer, run_loop: Callable[..., Any]
) -> None:
    """A server with a task a connection, whose handler is driven by the transport's callbacks."""

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    async def serve(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        while line := await incoming.readline():
            assert reader.span_id() is None
            with tracer.start_as_current_span("server") as span:
                async for _ in numbers():
                    assert reader.span_id() == span_id(span)
                outgoing.write(line)
                await outgoing.drain()
                assert reader.span_id() == span_id(span)
        outgoing.close()

    async def ask(port: int) -> None:
        incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
        with tracer.start_as_current_span("client") as span:
            for _ in range(5):
                outgoing.write(b"line\n")
                assert await incoming.readline() == b"line\n"
                assert reader.span_id() == span_id(span)
        outgoing.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await asyncio.gather(*(ask(port) for _ in range(16)))

    run_loop(main())


@eager
@pytest.mark.parametrize("how", ["factory", "direct"])
def test_eager_tasks(how: str, reader: Any, tracer: Tracer, run_loop: Callable[..., Any]) -> None:
    """The first step runs inside of its creator, and must leave the creator's span behind."""
    foreign = tracer.start_span("foreign")
    theirs = contextvars.Context()
    theirs.run(context.attach, trace.set_span_in_context(foreign))

    async def child(parent: trace.Span) -> None:
        assert reader.span_id() == span_id(parent)
        with tracer.start_as_current_span("child") as span:
            await asyncio.sleep(0)
            assert reader.span_id() == span_id(span)
        assert reader.span_id() == span_id(parent)

    def start(work: Main, **options: Any) -> asyncio.Task[Any]:
        loop = asyncio.get_running_loop()
        if how == "factory":
            return loop.create_task(work, **options)
        return asyncio.Task(work, loop=loop, eager_start=True, **options)  # type: ignore[call-arg]

    def factory(loop: asyncio.AbstractEventLoop, work: Main, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(work, loop=loop, **{**options, "eager_start": True})  # type: ignore[call-arg]

    async def main() -> None:
        if how == "factory":
            asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]
        with tracer.start_as_current_span("creator") as creator:
            tasks = [start(child(creator))]
            assert reader.span_id() == span_id(creator)
            tasks.append(start(child(foreign), context=theirs))
            assert reader.span_id() == span_id(creator)
            await asyncio.gather(*tasks)
            assert reader.span_id() == span_id(creator)

    run_loop(main())


@eager
def test_eager_tasks_where_asyncio_is_part_of_the_executable(library_path: Path) -> None:
    """Its calls cannot be seen there: the creator's span comes back all the same."""
    code = """
import asyncio, ctypes, sys
from opentelemetry.sdk.trace import TracerProvider
from otel_gpuflame import instrument
from otel_gpuflame.instrument import _library

class Blind(_library.NativeContextLibrary):
    def __init__(self, path):
        super().__init__(path)
        self.follow = lambda library: 0

_library.NativeContextLibrary = Blind
sys.builtin_module_names += ("_asyncio",)
assert instrument.install()
tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
library = ctypes.PyDLL(sys.argv[1])

def span_id():
    buffer = ctypes.create_string_buffer(64)
    library.ogf_context_get(buffer)
    return int.from_bytes(buffer.raw[16:24], "big") if buffer.raw[24] == 1 else None

async def child():
    with tracer.start_as_current_span("child") as span:
        await asyncio.sleep(0)
        assert span_id() == span.get_span_context().span_id

async def main():
    with tracer.start_as_current_span("creator") as creator:
        task = asyncio.Task(child(), loop=asyncio.get_running_loop(), eager_start=True)
        assert span_id() == creator.get_span_context().span_id
        await task
        assert span_id() == creator.get_span_context().span_id

asyncio.run(main())
"""
    run_python(code, library_path)


def run_python(code: str, library_path: Path) -> None:
    """Runs `code` in a fresh interpreter, where nothing was imported before the install."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(library_path)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)]),
            "OTEL_GPUFLAME_CONTEXT_LIB": str(library_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_event_loop_that_is_loaded_after_the_install(library_path: Path) -> None:
    """Extension modules are followed from the moment at which they are loaded."""
    pytest.importorskip("uvloop")
    code = """
import asyncio, ctypes, sys
from opentelemetry.sdk.trace import TracerProvider
from otel_gpuflame import instrument
assert instrument.install()
assert "uvloop" not in sys.modules
import uvloop
tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
library = ctypes.PyDLL(sys.argv[1])

def span_id():
    buffer = ctypes.create_string_buffer(64)
    library.ogf_context_get(buffer)
    return int.from_bytes(buffer.raw[16:24], "big") if buffer.raw[24] == 1 else None

async def request(number):
    with tracer.start_as_current_span("request") as span:
        for _ in range(10):
            await asyncio.sleep(0)
            assert span_id() == span.get_span_context().span_id
    assert span_id() is None

async def main():
    await asyncio.gather(*map(request, range(8)))

uvloop.new_event_loop().run_until_complete(main())
"""
    run_python(code, library_path)


def test_trio(reader: Any, tracer: Tracer) -> None:
    """Trio's tasks run in Contexts of their own, too, and so do its worker threads."""
    trio = pytest.importorskip("trio")

    async def request() -> None:
        with tracer.start_as_current_span("request") as root:
            for _ in range(10):
                await trio.lowlevel.checkpoint()
                assert reader.span_id() == span_id(root)
            assert await trio.to_thread.run_sync(reader.span_id) == span_id(root)
        assert reader.span_id() is None

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(REQUESTS):
                nursery.start_soon(request)

    trio.run(main)


def test_greenlets_keep_their_spans(reader: Any, tracer: Tracer) -> None:
    """64 requests in greenlets with Contexts of their own take turns in an order that nobody knows.

    A function of the program that is told of switches is told as before.
    """
    greenlet = pytest.importorskip("greenlet")
    dice = random.Random(11)
    told: list[str] = []

    def request(hub: Any, number: int) -> None:
        with tracer.start_as_current_span(f"request {number}") as root:
            for _ in range(5):
                hub.switch()
                assert reader.span_id() == span_id(root)
                with tracer.start_as_current_span("part") as part:
                    hub.switch()
                    assert reader.span_id() == span_id(part)
                assert reader.span_id() == span_id(root)
        assert reader.span_id() is None

    def requests() -> None:
        greenlet.settrace(lambda event, _: told.append(event))
        waiting = []
        for number in range(REQUESTS):
            each = greenlet.greenlet(request)
            each.gr_context = contextvars.Context()
            waiting.append(each)
            each.switch(greenlet.getcurrent(), number)
            assert reader.span_id() is None
        while waiting:
            each = dice.choice(waiting)
            each.switch()
            assert reader.span_id() is None
            if each.dead:
                waiting.remove(each)

    # In a thread of its own, since following lasts as long as the thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(requests).result()
    assert len(told) > REQUESTS * 20


@pytest.mark.parametrize("name", ["gevent", "eventlet"])
def test_green_threads_turn_publication_off(
    name: str,
    reader: Any,
    tracer: Tracer,
    warnings_logged: Warnings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They switch unseen, so that nothing is known in any thread; one warning says so."""
    with tracer.start_as_current_span("outer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        for _ in range(2):
            with tracer.start_as_current_span("inner"):
                assert reader.span_id() is None
        assert reader.span_id() is None
    (warning,) = warnings_logged()
    assert name in warning
