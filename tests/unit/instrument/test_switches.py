"""A thread publishes what its `contextvars.Context` says, however it gets from one to another."""

from __future__ import annotations

import contextvars
import ctypes
import functools
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import Tracer

HERE = Path(__file__).parent
RunInThread = Callable[[Callable[[], Any]], Any]


def span_id(span: trace.Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def copied_context_with(span: trace.Span) -> contextvars.Context:
    """A contextvars.Context in which `span` is current, as frameworks hand to their workers."""
    copied = contextvars.Context()
    copied.run(context.attach, trace.set_span_in_context(span))
    return copied


def test_a_context_publishes_its_span_while_it_runs(reader: Any, tracer: Tracer) -> None:
    """Inside, between and after: the span that is current there, and the outer one again."""
    first, second = (tracer.start_span(name) for name in ("first", "second"))
    contexts = [copied_context_with(span) for span in (first, second)]
    assert reader.span_id() is None
    with tracer.start_as_current_span("outer") as outer:
        for _ in range(2):
            assert [each.run(reader.span_id) for each in contexts] == [
                span_id(first),
                span_id(second),
            ]
            assert reader.span_id() == span_id(outer)
        assert contexts[0].run(contexts[1].run, reader.span_id) == span_id(second)
        assert contextvars.Context().run(reader.span_id) is None
    assert contexts[0].run(reader.span_id) == span_id(first)
    assert reader.span_id() is None


def test_a_span_inside_of_a_foreign_context_gives_way_to_the_foreign_one(
    reader: Any, tracer: Tracer
) -> None:
    """After a detach the Context's own span is current; after the Context the thread's own."""
    foreign = tracer.start_span("foreign")
    copied = copied_context_with(foreign)

    def item() -> None:
        with tracer.start_as_current_span("theirs") as theirs:
            assert reader.span_id() == span_id(theirs)
        assert reader.span_id() == span_id(foreign)

    with tracer.start_as_current_span("outer") as outer:
        copied.run(item)
        assert reader.span_id() == span_id(outer)
        with tracer.start_as_current_span("inner") as inner:
            assert reader.span_id() == span_id(inner)
        assert reader.span_id() == span_id(outer)


def test_what_is_left_attached_in_a_context_stays_in_it(reader: Any, tracer: Tracer) -> None:
    """Django under ASGI does that: a middleware's two halves are two items of a pool."""
    left = tracer.start_span("left")
    copied = contextvars.Context()
    copied.run(context.attach, trace.set_span_in_context(left))
    assert reader.span_id() is None
    with ThreadPoolExecutor(max_workers=1) as pool:
        assert pool.submit(copied.run, reader.span_id).result() == span_id(left)
        assert pool.submit(reader.span_id).result() is None
        assert pool.submit(contextvars.Context().run, reader.span_id).result() is None


def test_an_exception_leaves_the_context_as_well(reader: Any, tracer: Tracer) -> None:
    """The error arrives as it was, and the outer span is published again."""
    error = ValueError("boom")

    def fail() -> None:
        raise error

    with tracer.start_as_current_span("outer") as outer:
        with pytest.raises(ValueError, match="boom") as caught:
            copied_context_with(tracer.start_span("theirs")).run(fail)
        assert caught.value is error
        assert reader.span_id() == span_id(outer)


@pytest.mark.usefixtures("reader")
def test_running_in_a_context_behaves_as_before() -> None:
    """Arguments, results, errors of misuse, and the ways of naming the method."""
    ran = contextvars.Context()

    def work(*args: int, **kwargs: int) -> tuple[Any, Any]:
        return args, kwargs

    assert ran.run(work, 1, 2, a=3, b=4) == ((1, 2), {"a": 3, "b": 4})
    assert contextvars.Context.run(ran, work, 1) == ((1,), {})
    assert functools.partial(ran.run, work)(a=1) == ((), {"a": 1})
    result = object()
    assert ran.run(lambda: result) is result
    with pytest.raises(RuntimeError, match="already entered"):
        ran.run(ran.run, work)
    with pytest.raises(TypeError, match="missing 1 required positional"):
        ran.run()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="not callable"):
        ran.run(1)  # type: ignore[arg-type]
    assert ran.run(work) == ((), {})


def test_a_generator_publishes_what_is_current_to_the_caller(reader: Any, tracer: Tracer) -> None:
    """OpenTelemetry's Context does not end at a yield, and the record says what it says."""

    def items() -> Iterator[int]:
        with tracer.start_as_current_span("generator") as inner:
            yield span_id(inner)

    with tracer.start_as_current_span("outer") as outer:
        generator = items()
        assert next(generator) == reader.span_id() == span_id(trace.get_current_span())
        with tracer.start_as_current_span("consumer") as consumer:
            assert reader.span_id() == span_id(consumer)
        assert list(generator) == []
        assert reader.span_id() == span_id(outer)


def test_a_generator_that_ends_under_another_span_publishes_nothing_wrong(
    reader: Any, tracer: Tracer
) -> None:
    """Its detach comes out of order, so that nothing is known until the next span."""

    def items() -> Iterator[None]:
        with tracer.start_as_current_span("generator"):
            yield

    generator = items()
    next(generator)
    with tracer.start_as_current_span("consumer"):
        generator.close()
        assert reader.span_id() is None
        with tracer.start_as_current_span("next") as following:
            assert reader.span_id() == span_id(following)
    assert reader.span_id() is None


def test_pools_publish_the_span_that_the_application_hands_over(
    reader: Any, tracer: Tracer
) -> None:
    """Many requests over few threads: with the request's Context its span, without it none."""
    barrier = threading.Barrier(4, timeout=600)

    def work() -> tuple[int | None, int | None]:
        barrier.wait()
        before = reader.span_id()
        with tracer.start_as_current_span("work"):
            barrier.wait()
        return before, reader.span_id()

    with ThreadPoolExecutor(max_workers=4) as pool:
        expected, results = [], []
        for number in range(32):
            request = tracer.start_span("request")
            with trace.use_span(request):
                if number % 2:
                    expected.append((span_id(request),) * 2)
                    results.append(pool.submit(contextvars.copy_context().run, work))
                else:
                    expected.append((None, None))  # type: ignore[arg-type]
                    results.append(pool.submit(work))
        assert [result.result() for result in results] == expected


def test_a_thread_of_c_code_that_loses_its_python_state_loses_the_span(
    reader: Any, tracer: Tracer, tmp_path: Path
) -> None:
    """Each call back has a Context of its own; what one leaves attached is not the next one's."""
    library = tmp_path / "foreign_thread.so"
    source = HERE / "foreign_thread.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
    seen: list[int | None] = []
    left = tracer.start_span("left")

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def called(turn: int) -> None:
        seen.append(reader.span_id())
        if turn == 0:
            context.attach(trace.set_span_in_context(left))
            seen.append(reader.span_id())

    assert ctypes.CDLL(str(library)).call_twice(called) == 0
    assert seen == [None, span_id(left), None]
