"""Which span a call is linked to."""

from __future__ import annotations

import numpy as np
import pytest

from otel_gpuflame.correlate.spans import SpanLink, link_columns
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import CallFlag
from tests.unit.profile.builders import ROOT_ID, SAMPLED, SPAN_ID, TRACE_ID, call

ROOT = CallFlag.HAS_LOCAL_ROOT


def with_span(flags: int) -> CallArray:
    """A call whose record has all three ids, whatever the flags say of them."""
    return call(
        "cuLaunchKernel",
        flags=flags,
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        local_root_span_id=ROOT_ID,
    )


@pytest.mark.parametrize(
    ("flags", "mode", "span_id"),
    [
        (SAMPLED | ROOT, SpanLink.LOCAL_ROOT, ROOT_ID),
        (SAMPLED | ROOT, SpanLink.ACTIVE, SPAN_ID),
        (SAMPLED, SpanLink.LOCAL_ROOT, SPAN_ID),
        (SAMPLED, SpanLink.ACTIVE, SPAN_ID),
        (CallFlag.HAS_SPAN | ROOT, SpanLink.LOCAL_ROOT, None),
        (CallFlag.HAS_SPAN, SpanLink.ACTIVE, None),
        (CallFlag.SPAN_SAMPLED | ROOT, SpanLink.LOCAL_ROOT, None),
        (CallFlag.SPAN_SAMPLED, SpanLink.ACTIVE, None),
        (0, SpanLink.LOCAL_ROOT, None),
        (0, SpanLink.ACTIVE, None),
        (SAMPLED | ROOT | CallFlag.RETURNED, SpanLink.LOCAL_ROOT, ROOT_ID),
    ],
)
def test_link_of_a_call(flags: int, mode: SpanLink, span_id: bytes | None) -> None:
    """Only sampled spans are linked; the local root where there is one and it is asked for."""
    columns = link_columns(with_span(flags), mode)
    assert columns.shape == (1, 3)
    expected = TRACE_ID + span_id if span_id else bytes(24)
    assert np.ascontiguousarray(columns).astype("<u8").tobytes() == expected


@pytest.mark.parametrize("mode", SpanLink)
@pytest.mark.parametrize("zero", ["trace_id", "span_id"])
def test_zeros_are_no_ids(mode: SpanLink, zero: str) -> None:
    """A publisher may say that it has a span and write none."""
    rows = with_span(SAMPLED | ROOT)
    rows[zero] = 0
    assert not link_columns(rows, mode).any()


def test_a_local_root_of_zeros_is_none() -> None:
    """The active span is the best that is known."""
    rows = with_span(SAMPLED | ROOT)
    rows["local_root_span_id"] = 0
    columns = np.ascontiguousarray(link_columns(rows, SpanLink.LOCAL_ROOT)).astype("<u8")
    assert columns.tobytes() == TRACE_ID + SPAN_ID


@pytest.mark.parametrize("mode", SpanLink)
def test_rows_keep_their_places(mode: SpanLink) -> None:
    """In a mixed batch only the rows with a sampled span are linked."""
    rows = np.concatenate([with_span(0), with_span(SAMPLED | ROOT), with_span(0)])
    assert (link_columns(rows, mode)[:, 2] != 0).tolist() == [False, True, False]


@pytest.mark.parametrize("mode", SpanLink)
def test_no_calls_no_links(mode: SpanLink) -> None:
    """An empty batch is fine."""
    assert link_columns(np.zeros(0, wire.CALL), mode).shape == (0, 3)
