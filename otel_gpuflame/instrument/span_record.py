# SPDX-License-Identifier: Apache-2.0
"""Turns an OpenTelemetry span into the facts that are published about it.

The local root of a span is the first span of its request in this process: the one without parent
or with a remote parent. It is remembered on the span object, so that it goes wherever the span
goes. (Under a key of the OTel Context it would be wrong for a span that was started with an
explicit parent: the Context it is then attached to may belong to another request.)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context

PROFILE_ID_ATTRIBUTE = "pyroscope.profile.id"
"""By it Grafana offers the profile of a span. Local roots have it: their span id, in hexadecimal."""

_RECORD_ATTRIBUTE = "_otel_gpuflame_span_record"
_NO_FACT = object()


# struct ogf_context_record: both ids, valid, flags, size of the attributes, then attribute 0 (the local
# root) as key, length and 16 hexadecimal digits; the rest of 64 bytes is zero.
_IMAGE = struct.Struct("=16s8sBBH2s16s18x")
_ROOT_ATTRIBUTE = b"\x00\x10"


class SpanRecord(NamedTuple):
    """What is published about a span. One is made for each span."""

    span_id: bytes
    """8 bytes in W3C order."""
    local_root: bytes | None
    """8 bytes; None when the local root cannot be known for certain."""
    image: bytes
    """The whole record as it lies in a thread's memory: 64 bytes."""


def _image(context: trace.SpanContext, local_root: bytes | None) -> bytes:
    attribute, root, size = b"", b"", 0
    if local_root is not None:
        attribute, root = _ROOT_ATTRIBUTE, local_root.hex().encode()
        size = len(attribute) + len(root)
    ids = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
    flags = int(context.trace_flags) & 0xFF
    return _IMAGE.pack(*ids, 1, flags, size, attribute, root)


def has_ended(span: trace.Span) -> bool:
    """Whether the span is over. A span that never records is never known to be over."""
    return not span.is_recording() and not isinstance(span, trace.NonRecordingSpan)


def starts_here(span: trace.Span) -> bool:
    """Whether the span says that it has no parent, or a parent in another process."""
    parent = getattr(span, "parent", _NO_FACT)
    return parent is None or (
        isinstance(parent, trace.SpanContext) and (parent.is_remote or not parent.is_valid)
    )


def span_record(span: trace.Span, enclosing: Context | None) -> SpanRecord | None:
    """What to publish while ``span`` is current. A local root is marked for Grafana the first time.

    Args:
        span: any span of the OpenTelemetry API.
        enclosing: the Context around the span: the one that was current before it, or the one it
            was started in. It tells the local root of a span whose parent is current there.

    Returns:
        None for a span that is invalid, or that runs in another process.
    """
    remembered = getattr(span, _RECORD_ATTRIBUTE, None)
    if isinstance(remembered, SpanRecord):
        return remembered
    context = span.get_span_context()
    if not context.is_valid or context.is_remote:
        return None
    local_root = _local_root(span, context, enclosing)
    span_id = context.span_id.to_bytes(8, "big")
    record = SpanRecord(span_id, local_root, _image(context, local_root))
    if local_root is not None:
        _remember(span, record)
    if starts_here(span):
        span.set_attribute(PROFILE_ID_ATTRIBUTE, span_id.hex())
    return record


def _remember(span: trace.Span, record: SpanRecord) -> None:
    try:
        setattr(span, _RECORD_ATTRIBUTE, record)
    except AttributeError:
        # A span class with slots: worked out anew each time, less exact but not wrong.
        return


def _local_root(
    span: trace.Span, context: trace.SpanContext, enclosing: Context | None
) -> bytes | None:
    if starts_here(span):
        return context.span_id.to_bytes(8, "big")
    outer = trace.INVALID_SPAN if enclosing is None else trace.get_current_span(enclosing)
    if _is_child_of(span, context, outer.get_span_context()):
        outer_record = span_record(outer, None)
        return None if outer_record is None else outer_record.local_root
    if hasattr(span, "parent") or context.trace_flags.sampled:
        return None
    # Not sampled, and nothing local around it. Nobody stores such a span, so there is nothing that
    # a wrong guess could be shown on.
    return context.span_id.to_bytes(8, "big")


def _is_child_of(span: trace.Span, context: trace.SpanContext, outer: trace.SpanContext) -> bool:
    if outer.trace_id != context.trace_id or outer.is_remote or not outer.is_valid:
        return False
    parent = getattr(span, "parent", _NO_FACT)
    if isinstance(parent, trace.SpanContext):
        return parent.span_id == outer.span_id
    # A span that is not sampled does not tell its parent.
    return not context.trace_flags.sampled
