# SPDX-License-Identifier: Apache-2.0
"""Decides what a thread publishes when its current OpenTelemetry Context changes.

The rule: a span is published only between an attach and its detach in this very thread, and only
while the Context that was attached is the current one. A Context that came into the thread another
way (``contextvars.Context.run``, as executors do) is not restored after a detach, since the thread
can leave it again without telling anybody. So a record may be missing, but is not another
request's.

Python tells nobody when a thread enters or leaves a ``contextvars.Context``. Two things therefore
go unnoticed until the thread's next attach or detach, outside of ``ThreadPoolExecutor``, whose work
items end with a check: an attach inside ``Context.run`` that was not detached before it returned,
and another request's Context that is run inside of a span without an attach of its own.
"""

from __future__ import annotations

import logging
import threading

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext, get_current_span

from otel_gpuflame.instrument._library import ContextLibrary
from otel_gpuflame.instrument._threads import thread_sharing
from otel_gpuflame.instrument.span_record import SpanRecord, has_ended, span_record

_logger = logging.getLogger(__name__)

# An application that never detaches would otherwise grow the list by one entry a request. Deeper
# nesting than this only means that outer spans are not restored.
_MAX_ENTRIES = 128


# What a thread's record holds is not known while it is being written: an exception of a signal
# handler (KeyboardInterrupt) may come in between.
_UNKNOWN = SpanRecord(b"", b"", None, 0)

# Token, attached Context, its span, what is published for it. A plain tuple, since making a named
# one would add 200 ns to the 1 µs of an attach.
_Entry = tuple[object, Context, Span, SpanRecord]


class _ThreadState:
    """What this thread publishes, and its attaches that were not detached, innermost last."""

    __slots__ = ("entries", "published")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.published: SpanRecord | None = None


class _Threads(threading.local):
    def __init__(self, library: ContextLibrary) -> None:
        self.state = _ThreadState()
        # A thread of C code can lose its Python state and get a new one; its record survives.
        library.clear()


class SpanPublisher:
    """Keeps the record of each thread in step with the thread's current span.

    Takes no lock. An error in here clears the record, is logged once and never reaches the
    application; an interrupt clears the record and goes on its way.
    """

    def __init__(self, library: ContextLibrary) -> None:
        self.enabled = False
        self._library = library
        self._threads = _Threads(library)
        self._told: set[str] = set()

    def attached(self, token: object, context: Context) -> None:
        """``context`` became current in this thread; ``token`` will detach it."""
        try:
            state = self._threads.state
            span = get_current_span(context)
            record = None
            if span is not INVALID_SPAN and self._may_publish() and not has_ended(span):
                enclosing = getattr(token, "old_value", None)
                record = span_record(span, enclosing if isinstance(enclosing, Context) else None)
                if record is not None:
                    state.entries.append((token, context, span, record))
                    if len(state.entries) > _MAX_ENTRIES:
                        del state.entries[0]
            self._publish(state, record)
        except BaseException as error:
            self._failed(error)

    def detached(self, token: object, current: Context) -> None:
        """``token`` was detached, or failed to be; ``current`` is now the current Context."""
        try:
            state = self._threads.state
            entries = state.entries
            if entries and entries[-1][0] is token:
                entries.pop()
            elif entries:
                entries[:] = [entry for entry in entries if entry[0] is not token]
            self._synchronize(state, current)
        except BaseException as error:
            self._failed(error)

    def synchronize(self, current: Context) -> None:
        """Publishes what this thread attached last if it is still current, else nothing."""
        try:
            self._synchronize(self._threads.state, current)
        except BaseException as error:
            self._failed(error)

    def clear(self) -> None:
        """Publishes nothing in this thread until its next switch."""
        self._publish(self._threads.state, None)

    def span_ended(self, context: SpanContext) -> None:
        """Stops publishing the span in this thread, whether or not it was detached."""
        published = self._threads.state.published
        if published is not None and (
            published.span_id == context.span_id.to_bytes(8, "big")
            and published.trace_id == context.trace_id.to_bytes(16, "big")
        ):
            self.clear()

    def _synchronize(self, state: _ThreadState, current: Context) -> None:
        record = None
        if state.entries:
            # The innermost only: if that is not current, this thread runs somebody else's Context
            # or detaches in disorder, and which of its spans it really works on is anyone's guess.
            _, context, span, attached_record = state.entries[-1]
            if context is current and self._may_publish() and not has_ended(span):
                record = attached_record
        self._publish(state, record)

    def _may_publish(self) -> bool:
        if not self.enabled:
            return False
        sharing = thread_sharing()
        if sharing is None:
            return True
        self._warn_once(
            "GPU work in threads that %s shares between requests is not linked to spans; "
            "only plain threads publish their active span",
            sharing,
        )
        return False

    def _publish(self, state: _ThreadState, record: SpanRecord | None) -> None:
        if record is state.published:
            return
        state.published = _UNKNOWN
        status = 0
        if record is None:
            self._library.clear()
        else:
            status = self._library.publish(*record)
        state.published = record if status == 0 else None
        if status != 0:
            self._warn_once("a thread's span is not published: no record (errno %d)", -status)

    def _failed(self, error: BaseException) -> None:
        self._library.clear()
        self._threads.state.published = None
        if not isinstance(error, Exception):
            raise error
        self._warn_once("a thread's span is not published: %r", error)

    def _warn_once(self, text: str, cause: object) -> None:
        key = f"{text}{cause}" if isinstance(cause, str) else text
        if key not in self._told:
            self._told.add(key)
            _logger.warning(text, cause)
