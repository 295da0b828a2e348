"""Which spans a batch worked for, from recorded traces: what `otel_gpuflame.instrument.batch` wrote into its links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from otel_gpuflame.profile.batches import Member
from otel_gpuflame.profile.model import Link

# Part of the contract with instrument/batching.py, which must not be imported here.
_BATCH_SPAN: Final = "gpu.batch"
_SHARE_ATTRIBUTE: Final = "gpu.batch.share"

_Key = tuple[int, int]
SpansByKey = Mapping[_Key, ReadableSpan]
"""Spans by trace and span id."""


def spans_by_key(spans: Sequence[ReadableSpan]) -> SpansByKey:
    """To look up parents in."""
    return {_key(span.context): span for span in spans}


def batch_members(
    spans: Sequence[ReadableSpan], *, by_local_root: bool
) -> dict[Link, list[Member]]:
    """Members with their shares, by the link of the batch's span.

    With `by_local_root` a member is the first span of its request in its process, as it is for all samples that are
    linked so. Links without a usable share are no members.
    """
    by_key = spans_by_key(spans)
    return {
        link_to(span.context): [
            Member(link_to(_member(link.context, by_key, by_local_root)), share)
            for link in span.links
            if (share := _share(link.attributes)) is not None
        ]
        for span in spans
        if span.name == _BATCH_SPAN
    }


def _share(attributes: Mapping[str, object] | None) -> float | None:
    share = (attributes or {}).get(_SHARE_ATTRIBUTE)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not math.isfinite(share):
        return None
    return float(share) if 0 <= share <= 1 else None


def _member(context: SpanContext, by_key: SpansByKey, by_local_root: bool) -> SpanContext:
    span = by_key.get(_key(context))
    if span is None or not by_local_root:
        return context
    root: SpanContext = local_root(span, by_key).context
    return root


def local_root(span: ReadableSpan, by_key: SpansByKey) -> ReadableSpan:
    """The outermost span of the same resource. A file may say that spans are each other's parents."""
    for _ in range(len(by_key)):
        parent = None if span.parent is None else by_key.get(_key(span.parent))
        if parent is None or parent.resource.attributes != span.resource.attributes:
            break
        span = parent
    return span


def _key(context: SpanContext) -> _Key:
    return context.trace_id, context.span_id


def link_to(context: SpanContext) -> Link:
    """The same span, as profiles have it."""
    return Link(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"))
