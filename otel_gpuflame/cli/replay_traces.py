"""What `replay --traces` sends beside profiles, and what it says about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from opentelemetry.sdk.trace import ReadableSpan
from rich.console import Console

from otel_gpuflame.cli.tables import human, say
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.export.options import OtlpOptions
from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.export.recorded_times import (
    PlacedTimes,
    RecordedTimes,
    place,
    with_gpu_times,
)
from otel_gpuflame.export.recorded_traces import of_traces, send_spans
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.batches import split_batches
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.span_times import span_times


def send_traces(
    console: Console,
    capture: Path,
    recorded: Sequence[ReadableSpan],
    options: OtlpOptions,
    *,
    by_ns: int,
    is_split: bool,
) -> None:
    """Send the traces of a capture, all times moved by `by_ns`; exits with 1 if not all were taken.

    Spans get what the GPU did for them. With `is_split` batches' times are their members'.
    """
    bundles = _linked(capture, SpanLink.ACTIVE)
    linked = {link.trace_id for bundle in bundles for link in bundle.links}
    spans = of_traces(recorded, linked)
    times = _times(capture, recorded, bundles, is_split=is_split) if bundles else None
    if times is not None:
        spans = with_gpu_times(spans, times)
    accepted, reason = send_spans(spans, by_ns, options)
    say(console, f"{options.endpoint} ({options.protocol}): {accepted} of {len(spans)} spans sent")
    if times is not None:
        _say_times(console, place(spans, times.own))
    if reason:
        click.echo(f"error: traces: {reason}", err=True)
        sys.exit(1)
    if not spans:
        click.echo("warning: no trace of the file has a profile in this capture", err=True)


def _linked(capture: Path, link: SpanLink) -> list[Bundle]:
    return replay(capture, AggregateOptions(window_ns=None, span_link=link)).bundles


def _times(
    capture: Path, recorded: Sequence[ReadableSpan], bundles: Sequence[Bundle], *, is_split: bool
) -> RecordedTimes:
    """`bundles` are linked to innermost spans."""
    window = bundles[0].window
    of_requests = _linked(capture, SpanLink.LOCAL_ROOT)
    if not is_split:
        return RecordedTimes(window, span_times(bundles), span_times(of_requests), {})
    members = batch_members(recorded, by_local_root=False)
    members_roots = batch_members(recorded, by_local_root=True)
    undivided = span_times(bundles)
    return RecordedTimes(
        window,
        own=span_times(split_batches(bundles, members)),
        of_requests=span_times(split_batches(of_requests, members_roots)),
        batches={link: undivided[link] for link in members if link in undivided},
    )


def _say_times(console: Console, placed: PlacedTimes) -> None:
    say(console, f"  gpu_time: {_in_words([each.time_ns for each in placed])}")
    say(console, f"  gpu_wait: {_in_words([each.wait_ns for each in placed])}")


def _in_words(parts: Sequence[int]) -> str:
    on_spans, elsewhere, unlinked = (human(part, "nanoseconds") for part in parts)
    total = human(sum(parts), "nanoseconds")
    return f"{on_spans} on these spans, {elsewhere} on others, {unlinked} on none; {total} in all"
