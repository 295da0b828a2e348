# SPDX-License-Identifier: Apache-2.0
"""Decides what a ``contextvars.Context`` publishes while a thread runs in it.

The rule: the span of the OpenTelemetry Context that is current there, if it became current by an
attach that we saw, and as long as attaches and detaches nest. (A span that has ended does not come
back by a detach: somebody forgot to detach it.) What is decided goes into a context
variable beside the one of OpenTelemetry. So it is copied wherever the application's own Context is
copied (tasks, executors, callbacks), and the library publishes it whenever a thread enters or
leaves a Context: a switch needs no Python code, no lock and no memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext, get_current_span

from otel_gpuflame.instrument._green_threads import green_threads
from otel_gpuflame.instrument._greenlets import GreenletSwitches
from otel_gpuflame.instrument._library import ContextLibrary
from otel_gpuflame.instrument.span_record import has_ended, span_record

_logger = logging.getLogger(__name__)

# An application that never detaches would otherwise keep the spans of all its requests. Deeper
# nesting than this only means that outer spans are not restored.
_MAX_DEPTH = 128


class Attached(NamedTuple):
    """An attach that was not detached yet. The library reads the first item."""

    image: bytes
    """What is published: a record, or `_NO_IMAGE`."""
    token: int
    """Its identity. (The token itself would keep the Context alive that this lies in.)"""
    context: Context
    span: Span
    outer: Attached | None
    depth: int


_NOT_PUBLISHED = "a thread's span is not published: %r"
_NO_IMAGE = bytes(64)
# Making a named tuple by its class takes 200 ns longer.
_new = tuple.__new__

ATTACHED: ContextVar[Attached | None] = ContextVar("otel_gpuflame_attached")


class _Presence:
    """Clears the record of a thread that loses its Python state: a thread of C code may live on."""

    __slots__ = ("_library",)

    def __init__(self, library: ContextLibrary) -> None:
        self._library = library

    def __del__(self) -> None:
        self._library.clear()


class _Threads(threading.local):
    def __init__(self, library: ContextLibrary) -> None:
        self.presence = _Presence(library)


class SpanPublisher:
    """Keeps ``ATTACHED`` in step with OpenTelemetry's Context.

    Takes no lock. An error in here publishes nothing, is logged once and never reaches the
    application; an interrupt publishes nothing and goes on its way.
    """

    def __init__(self, library: ContextLibrary, describe: Callable[[Span], bool]) -> None:
        """Args: `describe` is asked about each span until it says that it knows the resource."""
        self._library = library
        self._describe: Callable[[Span], bool] | None = describe
        self._set = library.set
        self._threads = _Threads(library)
        self._greenlets = GreenletSwitches(library)
        self._enabled = False
        self._told: set[str] = set()

    @property
    def enabled(self) -> bool:
        """Whether spans are published."""
        return self._enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._enabled = enabled
        self._library.enable(enabled)

    def attached(self, token: object, context: Context) -> None:
        """``context`` became current in this thread; ``token`` will detach it."""
        try:
            outer = ATTACHED.get(None)
            span = get_current_span(context)
            if outer is None and span is INVALID_SPAN:
                return
            self._threads.presence  # noqa: B018 - its first use in a thread makes it
            if self._enabled and green_threads() is not None:
                self._refuse_green_threads()
            self._greenlets.follow()
            depth = 0 if outer is None else outer.depth + 1
            if depth > _MAX_DEPTH:
                outer, depth = None, 0
            image = _NO_IMAGE if span is INVALID_SPAN else self._image(span, token)
            attached = _new(Attached, (image, id(token), context, span, outer, depth))
            self._set(attached)
        except BaseException as error:
            self._failed(error)

    def detached(self, token: object, current: Context) -> None:
        """``token`` was detached; ``current`` is now the current Context."""
        try:
            attached = ATTACHED.get(None)
            if attached is None:
                return
            outer = attached.outer
            # After a detach in disorder it is anyone's guess which span the thread works on.
            if attached.token != id(token) or (outer is not None and outer.context is not current):
                outer = None
            if outer is not None and outer.image is not _NO_IMAGE and has_ended(outer.span):
                outer = outer._replace(image=_NO_IMAGE)
            self._set(outer)
        except BaseException as error:
            self._failed(error)

    def clear(self) -> None:
        """Publishes nothing in this thread until its next switch."""
        self._library.clear()

    def span_ended(self, context: SpanContext) -> None:
        """Stops publishing the span if it is current here, although it was not detached."""
        attached = ATTACHED.get(None)
        if attached is not None and attached.span.get_span_context() == context:
            self._set(attached._replace(image=_NO_IMAGE))

    def _image(self, span: Span, token: object) -> bytes:
        try:
            if has_ended(span):
                return _NO_IMAGE
            if self._describe is not None and self._describe(span):
                self._describe = None
            enclosing = getattr(token, "old_value", None)
            record = span_record(span, enclosing if isinstance(enclosing, Context) else None)
            return _NO_IMAGE if record is None else record.image
        except Exception as error:  # The span's class is anybody's.
            self._warn_once(_NOT_PUBLISHED, error)
            return _NO_IMAGE

    def _refuse_green_threads(self) -> None:
        self.enabled = False
        self._warn_once(
            "GPU work is not linked to spans: %s shares threads between requests in a way "
            "that cannot be followed",
            green_threads(),
        )

    def _failed(self, error: BaseException) -> None:
        ATTACHED.set(None)
        self._library.clear()
        if not isinstance(error, Exception):
            raise error
        self._warn_once(_NOT_PUBLISHED, error)

    def _warn_once(self, text: str, cause: object) -> None:
        if text not in self._told:
            self._told.add(text)
            _logger.warning(text, cause)
