"""The slowest request of a recording that has its traces beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from rich.console import Console

from otel_gpuflame.cli.tables import human, say
from otel_gpuflame.export.recorded_batches import batch_members
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.batches import split_batches
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.select import only_span
from otel_gpuflame.profile.top import top_python_lines, total

_SPAN_ID_BYTES: Final = 8
_LINES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """A request, and what the GPU did for it: alone, and by its shares of batches."""

    span: ReadableSpan
    requests: int
    """How many there were for which the GPU did something, this one included."""
    batches: int
    """Those that it is a member of."""
    bundles: list[Bundle]
    """Bundles of the estimates' scope hold the shares."""

    @property
    def span_id(self) -> bytes:
        """As in links."""
        return _id(self.span)

    @property
    def duration_ns(self) -> int:
        """From the span's start to its end."""
        return _duration_ns(self.span)


def slowest_request(bundles: Sequence[Bundle], spans: Sequence[ReadableSpan]) -> SlowRequest | None:
    """The longest span of a server for which the GPU did something; `bundles` are linked to local roots."""
    members = batch_members(spans, by_local_root=True)
    divided = split_batches(bundles, members)
    linked = {link.span_id for bundle in divided for link in bundle.links}
    served = [s for s in spans if s.kind is SpanKind.SERVER and _id(s) in linked]
    if not served:
        return None
    slowest = max(served, key=_duration_ns)
    span_id = _id(slowest)
    return SlowRequest(
        span=slowest,
        requests=len(served),
        batches=sum(any(m.link.span_id == span_id for m in each) for each in members.values()),
        bundles=only_span(divided, span_id),
    )


def print_slowest_request(console: Console, slow: SlowRequest) -> None:
    """How long it took, what of the GPU it had, and for which lines."""
    took, spent = human(slow.duration_ns, "nanoseconds"), sample_types.GPU_TIME
    say(console, f"The slowest of {slow.requests:,} requests", "bold")
    say(console, f"{slow.span.name} took {took}: span {slow.span_id.hex()}")
    if not total(slow.bundles, spent):
        spent = sample_types.GPU_LAUNCH
    estimates = [b for b in slow.bundles if b.scope == sample_types.ESTIMATED_SCOPE]
    whole, shared = total(slow.bundles, spent), total(estimates, spent)
    batches = f"shares of {slow.batches:,} batches" if slow.batches != 1 else "share of a batch"
    shares = f", {human(shared, spent.unit)} of it estimated: its {batches}"
    say(console, f"  {spent.type} {human(whole, spent.unit)}{shares if shared else ''}")
    for row in top_python_lines(slow.bundles, spent)[:_LINES]:
        say(console, f"  {human(row.value, spent.unit):>9}  {row.frame.name}  {_file(row.place)}")


def _file(place: str) -> str:
    return place.rpartition("/")[2]


def _id(span: ReadableSpan) -> bytes:
    span_id: int = span.context.span_id
    return span_id.to_bytes(_SPAN_ID_BYTES, "big")


def _duration_ns(span: ReadableSpan) -> int:
    return (span.end_time or 0) - (span.start_time or 0)
