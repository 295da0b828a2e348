"""What a plain thread publishes while spans come and go."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context, trace

# Bound before any install, as instrumentation libraries do.
from opentelemetry.context import Context, attach, detach
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, Tracer

TRACE_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736
RunInThread = Callable[[Callable[[], Any]], Any]


class FixedIds(IdGenerator):
    """Span ids 1, 2, 3 … in one trace."""

    def __init__(self) -> None:
        self.last = 0

    def generate_span_id(self) -> int:
        self.last += 1
        return self.last

    def generate_trace_id(self) -> int:
        return TRACE_ID


def span_id(span: Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def remote_parent(span: int) -> Context:
    """A Context as propagators make it from the headers of a request."""
    sampled = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(TRACE_ID, span, is_remote=True, trace_flags=sampled)
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


def test_record_has_the_bytes_of_the_specification(reader: Any) -> None:
    """Ids big-endian, valid 1, flags, size, then attribute 0 with the local root in hexadecimal."""
    tracer = TracerProvider(id_generator=FixedIds(), shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("root"), tracer.start_as_current_span("child"):
        raw = reader.raw()
    flags = raw[25]
    assert flags & TraceFlags.SAMPLED
    assert raw[:46] == (
        bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")
        + bytes.fromhex("0000000000000002")
        + bytes([1, flags])
        + (18).to_bytes(2, "little")
        + b"\x00\x10"
        + b"0000000000000001"
    )


def test_nested_spans_restore_the_outer(reader: Any, tracer: Tracer) -> None:
    """Leaving a span publishes the one around it, and leaving the last publishes none."""
    assert reader.span_id() is None
    with tracer.start_as_current_span("outer") as outer:
        assert reader.span_id() == span_id(outer)
        with tracer.start_as_current_span("inner") as inner:
            assert reader.span_id() == span_id(inner)
            assert reader.read().local_root == f"{span_id(outer):016x}"
        assert reader.span_id() == span_id(outer)
    assert reader.span_id() is None


def test_use_span_of_a_started_span_is_published(reader: Any, tracer: Tracer) -> None:
    """`use_span` makes a span current that was started before, and does not end it."""
    span = tracer.start_span("manual")
    assert reader.span_id() is None
    with trace.use_span(span):
        assert reader.span_id() == span_id(span)
    assert reader.span_id() is None


def test_a_context_without_span_inside_of_a_span_clears(reader: Any, tracer: Tracer) -> None:
    """An empty Context means that no span is current; the outer one comes back after it."""
    with tracer.start_as_current_span("outer") as outer:
        token = context.attach(Context())
        assert reader.span_id() is None
        context.detach(token)
        assert reader.span_id() == span_id(outer)


def test_other_values_in_the_context_keep_the_span(reader: Any, tracer: Tracer) -> None:
    """Baggage and the like attach Contexts with the same span."""
    with tracer.start_as_current_span("outer") as outer:
        token = context.attach(context.set_value("key", "value"))
        assert reader.span_id() == span_id(outer)
        context.detach(token)
        assert reader.span_id() == span_id(outer)


def test_an_exception_restores_the_outer_span(reader: Any, tracer: Tracer) -> None:
    """A span that is left by an exception is not published any more."""
    with tracer.start_as_current_span("outer") as outer:
        with pytest.raises(ValueError, match="boom"), tracer.start_as_current_span("inner"):
            raise ValueError("boom")
        assert reader.span_id() == span_id(outer)


def test_threads_are_independent(reader: Any, tracer: Tracer) -> None:
    """Two threads that are in spans at the same time publish each its own."""
    barrier = threading.Barrier(2, timeout=600)
    seen: dict[str, tuple[int, int | None]] = {}

    def work(name: str) -> None:
        with tracer.start_as_current_span(name) as span:
            barrier.wait()
            seen[name] = (span_id(span), reader.span_id())
            barrier.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen["a"][0] == seen["a"][1]
    assert seen["b"][0] == seen["b"][1]
    assert seen["a"] != seen["b"]
    assert reader.span_id() is None


def test_a_new_thread_never_shows_the_span_of_one_that_ended(
    reader: Any, tracer: Tracer, run_in_thread: RunInThread
) -> None:
    """A thread that ends inside of a span leaves nothing to the thread that gets its memory."""

    def leak() -> int | None:
        context.attach(trace.set_span_in_context(tracer.start_span("leaked")))
        return threading.get_ident() if reader.span_id() is not None else None

    def look() -> tuple[int, bytes | None]:
        return threading.get_ident(), reader.raw()

    # The identifier of a thread is the address of its TLS block. It is reused when the system has
    # seen the thread end, which may be after Python has: hence more than one attempt.
    for _ in range(1000):
        leaked_address = run_in_thread(leak)
        assert leaked_address is not None
        address, raw = run_in_thread(look)
        assert raw is None
        if address == leaked_address:
            return
    pytest.fail("no thread got the memory of another")


def test_context_handed_to_another_thread(
    reader: Any, tracer: Tracer, run_in_thread: RunInThread
) -> None:
    """A thread that attaches a Context it was given publishes its span, with the same root."""
    with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child"):
        handed = context.get_current()
        here = reader.read()

        def work() -> Any:
            token = attach(handed)
            try:
                return reader.read()
            finally:
                detach(token)
                assert reader.span_id() is None

        assert run_in_thread(work) == here
    assert here.local_root == f"{span_id(root):016x}"


def test_functions_bound_before_the_install_are_seen(reader: Any, tracer: Tracer) -> None:
    """`from opentelemetry.context import attach` at import time escapes nothing."""
    span = tracer.start_span("early")
    token = attach(trace.set_span_in_context(span))
    assert reader.span_id() == span_id(span)
    detach(token)
    assert reader.span_id() is None


def test_out_of_order_detach_publishes_nothing_that_was_left(reader: Any, tracer: Tracer) -> None:
    """When the outer is detached first, it does not come back with the detach of the inner."""
    outer, inner = tracer.start_span("outer"), tracer.start_span("inner")
    outer_token = context.attach(trace.set_span_in_context(outer))
    inner_token = context.attach(trace.set_span_in_context(inner))
    context.detach(outer_token)
    assert reader.span_id() is None
    context.detach(inner_token)
    assert reader.span_id() is None
    with tracer.start_as_current_span("next", context=Context()) as following:
        assert reader.span_id() == span_id(following)
    assert reader.span_id() is None


def test_detach_of_the_middle_publishes_nothing(reader: Any, tracer: Tracer) -> None:
    """In disorder it is unknown which span the thread works on; the next one is published again."""
    spans = [tracer.start_span(name) for name in "abc"]
    tokens = [context.attach(trace.set_span_in_context(span)) for span in spans]
    context.detach(tokens[1])
    assert reader.span_id() is None
    with tracer.start_as_current_span("next") as following:
        assert reader.span_id() == span_id(following)
    assert reader.span_id() is None
    context.detach(tokens[2])
    context.detach(tokens[0])
    assert reader.span_id() is None


def test_detach_in_another_thread_changes_neither(
    reader: Any, tracer: Tracer, run_in_thread: RunInThread, caplog: pytest.LogCaptureFixture
) -> None:
    """A token of another thread cannot be detached; both threads keep what they have."""
    caplog.set_level(logging.CRITICAL, logger="opentelemetry.context")
    outer = tracer.start_span("outer")
    token = context.attach(trace.set_span_in_context(outer))

    def work() -> None:
        with tracer.start_as_current_span("theirs") as theirs:
            context.detach(token)
            assert reader.span_id() == span_id(theirs)
        assert reader.span_id() is None

    run_in_thread(work)
    assert reader.span_id() == span_id(outer)
    context.detach(token)
    assert reader.span_id() is None


def test_second_detach_of_a_token_changes_nothing(
    reader: Any, tracer: Tracer, caplog: pytest.LogCaptureFixture
) -> None:
    """The API logs a used token and goes on; so does the published span."""
    caplog.set_level(logging.CRITICAL, logger="opentelemetry.context")
    with tracer.start_as_current_span("outer") as outer:
        token = context.attach(Context())
        context.detach(token)
        context.detach(token)
        assert reader.span_id() == span_id(outer)


def test_an_ended_span_is_not_published_again(reader: Any, tracer: Tracer) -> None:
    """A span that ended without being detached stays away at the next switch of its thread."""
    ended = tracer.start_span("ended")
    token = context.attach(trace.set_span_in_context(ended))
    ended.end()
    with tracer.start_as_current_span("next") as following:
        assert reader.span_id() == span_id(following)
    assert reader.span_id() is None
    with trace.use_span(ended):
        assert reader.span_id() is None
    context.detach(token)


def test_remote_and_invalid_spans_clear(reader: Any, tracer: Tracer) -> None:
    """A span of another process is not ours to attribute GPU work to; no span is no span."""
    with tracer.start_as_current_span("outer"):
        token = context.attach(remote_parent(7))
        assert reader.span_id() is None
        context.detach(token)
        with trace.use_span(trace.INVALID_SPAN):
            assert reader.span_id() is None


def test_span_with_remote_parent_is_the_local_root(reader: Any, tracer: Tracer) -> None:
    """The first span of a request in this process is its local root."""
    with (
        tracer.start_as_current_span("server", context=remote_parent(7)) as server,
        tracer.start_as_current_span("child"),
    ):
        assert reader.read().local_root == f"{span_id(server):016x}"


def test_a_parent_that_is_not_current_never_gives_a_wrong_local_root(
    reader: Any, tracer: Tracer
) -> None:
    """A span started for another request inside of this one does not get this one's root."""
    theirs = tracer.start_span("their request", context=remote_parent(7))
    with tracer.start_as_current_span("ours", context=remote_parent(7)):
        item = tracer.start_span("item", context=trace.set_span_in_context(theirs))
        with trace.use_span(item):
            published = reader.read()
    assert int.from_bytes(published.span_id, "big") == span_id(item)
    assert published.attributes == {}


def test_a_sampled_wrapper_of_a_local_span_has_no_known_root(reader: Any) -> None:
    """Nothing tells the local root of a bare SpanContext: the attribute is left out."""
    sampled = TraceFlags(TraceFlags.SAMPLED)
    wrapper = NonRecordingSpan(SpanContext(TRACE_ID, 5, is_remote=False, trace_flags=sampled))
    with trace.use_span(wrapper):
        published = reader.read()
    assert published.span_id == (5).to_bytes(8, "big")
    assert published.attributes == {}


def test_unsampled_spans_are_published_with_flags_zero(reader: Any) -> None:
    """The reader must be able to tell that the span will not be stored."""
    provider = TracerProvider(sampler=ALWAYS_OFF, id_generator=FixedIds(), shutdown_on_exit=False)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("root"), tracer.start_as_current_span("child"):
        published = reader.read()
    assert published.trace_flags & TraceFlags.SAMPLED == 0
    assert published.span_id == (2).to_bytes(8, "big")
    assert published.local_root == f"{1:016x}"


def test_other_instances_of_the_runtime_context_are_ignored(reader: Any, tracer: Tracer) -> None:
    """A private runtime context, as tests make them, does not change what the thread works on."""
    other = ContextVarsRuntimeContext()
    token = other.attach(trace.set_span_in_context(tracer.start_span("other")))
    assert reader.span_id() is None
    other.detach(token)
    with tracer.start_as_current_span("ours") as ours:
        token = other.attach(Context())
        assert reader.span_id() == span_id(ours)
        other.detach(token)


def test_an_application_that_never_detaches_does_not_grow(reader: Any, tracer: Tracer) -> None:
    """Each attach publishes, and the spans of old ones are let go."""
    spans = []
    for _ in range(300):
        span = tracer.start_span("leak", context=Context())
        context.attach(trace.set_span_in_context(span, Context()))
        assert reader.span_id() == span_id(span)
        spans.append(weakref.ref(span))
    gc.collect()
    assert sum(span() is not None for span in spans) < 150


def test_a_forked_child_has_its_own_record(reader: Any, tracer: Tracer) -> None:
    """The child starts with a copy, and what it publishes is not seen in the parent."""
    with tracer.start_as_current_span("parent") as parent:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                inherited = reader.span_id()
                with tracer.start_as_current_span("child") as span:
                    own = reader.span_id() == span_id(span)
                back = reader.span_id()
                os.write(write_end, f"{inherited} {own} {back}".encode())
            finally:
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            answer = pipe.read().decode()
        assert os.waitpid(child, 0)[1] == 0
        assert answer == f"{span_id(parent)} True {span_id(parent)}"
        assert reader.span_id() == span_id(parent)
