# SPDX-License-Identifier: Apache-2.0
"""A span for GPU work that is done for several requests at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext

BATCH_SPAN = "gpu.batch"
SIZE_ATTRIBUTE = "gpu.batch.size"
"""Of the batch span: its members, traced or not."""
SHARE_ATTRIBUTE = "gpu.batch.share"
"""Of a link: the member's part of the batch, 0 to 1. What it cost is an estimate by that."""


@contextmanager
def batch(contexts: Sequence[Context], weights: Sequence[float] | None = None) -> Iterator[Span]:
    """Opens the span of a batch: GPU work inside is the batch's, and nobody else's.

    The span is the root of a trace of its own, since its work belongs to no single request. It has
    a link to each member, with the member's share. The sampler decides about it as about any root.
    A request that is served in many steps is a member of each step's batch.

    Args:
        contexts: OpenTelemetry's Context of each request, as ``opentelemetry.context.get_current()``
            gave it where the request came in. One without a span counts, but cannot be linked.
        weights: what each costs beside the others, for instance its tokens; all the same if None.

    Yields:
        The span, which is current until the block is left.

    Raises:
        ValueError: not one weight for each Context, or one that is negative or no number, or
            nothing but zeros.
    """
    shares = _shares(len(contexts), weights)
    tracer = trace.get_tracer("otel_gpuflame.instrument")
    with tracer.start_as_current_span(
        BATCH_SPAN,
        context=Context(),
        attributes={SIZE_ATTRIBUTE: len(contexts)},
        links=_links(contexts, shares),
    ) as span:
        yield span


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if weights is None:
        return [1 / count] * count if count else []
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} members of a batch")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("a weight in a batch is not a number from 0 on")
    largest = max(weights, default=1)
    if largest == 0:
        raise ValueError("the weights of a batch are nothing but zeros")
    # Parts of the largest: their sum cannot be too large for a number.
    parts = [weight / largest for weight in weights]
    total = math.fsum(parts)
    return [part / total for part in parts]


def _links(contexts: Sequence[Context], shares: Sequence[float]) -> list[Link]:
    """One for each span: a request may be in a batch more than once."""
    members: dict[tuple[int, int], tuple[SpanContext, float]] = {}
    for context, share in zip(contexts, shares, strict=True):
        member = trace.get_current_span(context).get_span_context()
        if member.is_valid:
            ids = member.trace_id, member.span_id
            members[ids] = member, share + members.get(ids, (member, 0.0))[1]
    return [Link(member, {SHARE_ATTRIBUTE: share}) for member, share in members.values()]
