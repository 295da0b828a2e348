"""Members of batches, from what spans say."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link as SpanLinkTo
from opentelemetry.trace import SpanContext

from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.profile.batches import Member
from otel_gpuflame.profile.model import Link

TRACE = 7
SERVICE, CALLER = (Resource({"service.name": name}) for name in ("inference", "caller"))


def context(span_id: int) -> SpanContext:
    """A span of the trace."""
    return SpanContext(TRACE, span_id, is_remote=False)


def link(span_id: int) -> Link:
    """The same, as profiles have it."""
    return Link(TRACE.to_bytes(16, "big"), span_id.to_bytes(8, "big"))


def span(
    span_id: int, parent: int | None = None, resource: Resource = SERVICE, **fields: Any
) -> ReadableSpan:
    """A recorded span."""
    return ReadableSpan(
        name=fields.pop("name", "span"),
        context=context(span_id),
        parent=None if parent is None else context(parent),
        resource=resource,
        **fields,
    )


def batch(*members: tuple[int, object], name: str = "gpu.batch") -> ReadableSpan:
    """Span 100, with links to spans and their shares."""
    links = [SpanLinkTo(context(each), {"gpu.batch.share": share}) for each, share in members]  # type: ignore[dict-item]
    return span(100, name=name, links=links)


@pytest.mark.parametrize(("by_local_root", "member"), [(True, 2), (False, 4)])
def test_a_member_is_the_span_that_its_other_samples_are_linked_to(
    by_local_root: bool, member: int
) -> None:
    """The local root is the outermost span of the same service, whatever called it."""
    chain = [span(1, resource=CALLER), span(2, parent=1), span(3, parent=2), span(4, parent=3)]
    found = batch_members([*chain, batch((4, 0.5), (9, 0.5))], by_local_root=by_local_root)
    # Of span 9 nothing is known but that it was a member.
    assert found == {link(100): [Member(link(member), 0.5), Member(link(9), 0.5)]}


@pytest.mark.parametrize("share", ["much", True, -0.5, 1.5, float("nan"), float("inf")])
def test_links_without_a_usable_share_are_no_members(share: object) -> None:
    """A file may say anything."""
    found = batch_members([batch((1, share), (2, 1))], by_local_root=False)
    assert found == {link(100): [Member(link(2), 1.0)]}


def test_links_of_other_spans_are_not_members() -> None:
    """Only those of batches."""
    assert batch_members([batch((1, 1.0), name="other")], by_local_root=False) == {}


def test_spans_that_are_each_others_parents_come_to_an_end() -> None:
    """No recorder makes them, but a file can hold them."""
    found = batch_members(
        [span(1, parent=2), span(2, parent=1), batch((1, 1.0))], by_local_root=True
    )
    assert len(found[link(100)]) == 1
