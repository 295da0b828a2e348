"""Threads on which several requests take turns: a record may be missing, never another's."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import Tracer

Warnings = Callable[[], list[str]]


def span_id(span: trace.Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def copied_context_with(span: trace.Span) -> contextvars.Context:
    """A contextvars.Context in which `span` is current, as frameworks hand to their workers."""
    copied = contextvars.Context()
    copied.run(context.attach, trace.set_span_in_context(span))
    return copied


def test_asyncio_tasks_publish_nothing(
    reader: Any, tracer: Tracer, warnings_logged: Warnings
) -> None:
    """Tasks interleave between await points, so their spans stay out of the record."""
    seen: list[int | None] = []

    async def request(name: str) -> None:
        with tracer.start_as_current_span(name):
            seen.append(reader.span_id())
            await asyncio.sleep(0)
            seen.append(reader.span_id())
        seen.append(reader.span_id())

    async def main() -> None:
        await asyncio.gather(request("a"), request("b"))

    with tracer.start_as_current_span("outer") as outer:
        asyncio.run(main())
        assert reader.span_id() == span_id(outer)
    assert seen == [None] * 6
    (warning,) = warnings_logged()
    assert "asyncio" in warning


def test_a_span_around_an_event_loop_is_not_published_for_its_callbacks(
    reader: Any, tracer: Tracer
) -> None:
    """A callback may come from another thread with another request's Context."""
    foreign = copied_context_with(tracer.start_span("foreign"))
    loop = asyncio.new_event_loop()
    seen: list[int | None] = []
    with tracer.start_as_current_span("outer") as outer:
        loop.call_soon(lambda: seen.append(reader.span_id()), context=foreign)
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert reader.span_id() == span_id(outer)
    loop.close()
    assert seen == [None]


def test_a_span_inside_of_a_copied_context_is_published_for_its_scope_only(
    reader: Any, tracer: Tracer, run_in_thread: Callable[[Callable[[], None]], None]
) -> None:
    """A worker's own span is published; the inherited one around it is not left behind."""
    copied = copied_context_with(tracer.start_span("request"))

    def item() -> None:
        with tracer.start_as_current_span("own") as own:
            assert reader.span_id() == span_id(own)
        assert reader.span_id() is None

    def work() -> None:
        copied.run(item)
        assert reader.span_id() is None

    run_in_thread(work)


def test_a_foreign_context_inside_of_a_span_does_not_come_back(reader: Any, tracer: Tracer) -> None:
    """After a detach inside of a foreign Context neither its span nor the outer is published."""
    foreign = copied_context_with(tracer.start_span("foreign"))

    def item() -> None:
        with tracer.start_as_current_span("theirs") as theirs:
            assert reader.span_id() == span_id(theirs)
        assert reader.span_id() is None

    with tracer.start_as_current_span("outer") as outer:
        foreign.run(item)
        with tracer.start_as_current_span("inner") as inner:
            assert reader.span_id() == span_id(inner)
        assert reader.span_id() == span_id(outer)


def test_what_a_work_item_leaves_attached_is_gone_with_the_item(
    reader: Any, tracer: Tracer
) -> None:
    """The next item on a pool's thread does not run under the span of the one before."""

    def leak() -> int | None:
        context.attach(trace.set_span_in_context(tracer.start_span("request one")))
        return reader.span_id()

    with ThreadPoolExecutor(max_workers=1) as pool:
        assert pool.submit(contextvars.Context().run, leak).result() is not None
        assert pool.submit(contextvars.Context().run, reader.span_id).result() is None


def test_work_items_keep_their_arguments_results_and_errors(reader: Any) -> None:
    """The pool behaves as before."""

    def work(*args: int, **kwargs: int) -> tuple[Any, Any]:
        return args, kwargs

    with ThreadPoolExecutor(max_workers=1) as pool:
        assert pool.submit(work, 1, 2, fn=3, work=4).result() == ((1, 2), {"fn": 3, "work": 4})
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()


@pytest.mark.parametrize("name", ["gevent", "eventlet"])
def test_green_threads_turn_publication_off(
    name: str,
    reader: Any,
    tracer: Tracer,
    warnings_logged: Warnings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a green-thread library in the process any thread may be shared; one warning says so."""
    with tracer.start_as_current_span("outer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        for _ in range(2):
            with tracer.start_as_current_span("inner"):
                assert reader.span_id() is None
        assert reader.span_id() is None
    (warning,) = warnings_logged()
    assert name in warning


@pytest.mark.parametrize("running", [True, False])
def test_trio_counts_only_where_it_runs(
    running: bool, reader: Any, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries import trio without using it: only a thread inside of its loop is shared."""
    trio = types.ModuleType("trio")
    trio.lowlevel = types.SimpleNamespace(in_trio_run=lambda: running)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trio", trio)
    with tracer.start_as_current_span("span") as span:
        assert reader.span_id() == (None if running else span_id(span))


def test_a_trio_that_cannot_be_asked_counts_as_shared(
    reader: Any, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old Trio does not tell where it runs."""
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    with tracer.start_as_current_span("span"):
        assert reader.span_id() is None
