"""From a capture file to profiles, and to a backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import CaptureStart, Watermark
from otel_gpuflame.export import ExportResult, OtlpOptions, Outcome, open_exporter
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.batches import Member, split_batches
from otel_gpuflame.profile.device_faults import DeviceFault
from otel_gpuflame.profile.device_use import DeviceUse
from otel_gpuflame.profile.ledger import IMPOSSIBLE, Ledger
from otel_gpuflame.profile.model import Bundle, Link
from otel_gpuflame.profile.span_attributes import with_span_attributes


@dataclass(slots=True)
class ReplayResult:
    """What a capture file held."""

    bundles: list[Bundle]
    ledger: Ledger
    created: dict[str, str]
    damage: str | None
    skipped_blocks: dict[int, int] = field(default_factory=dict)
    devices: tuple[DeviceUse, ...] = ()
    faults: tuple[DeviceFault, ...] = ()


def replay(path: Path, options: AggregateOptions, *, shift_to: int | None = None) -> ReplayResult:
    """Aggregate a whole capture file. Raises CaptureFileError if nothing of it can be read."""
    bundles: list[Bundle] = []
    aggregator = CorrelatingAggregator(options)
    with ReplaySource(path, shift_to_unix_ns=shift_to, call_dtype=wire.CALL) as source:
        for event in source.events():
            bundles += aggregator.feed(event)
        bundles += aggregator.finish()
        ledger = aggregator.ledger
        for kind, count in source.impossible.items():
            ledger.dropped[kind, IMPOSSIBLE] = count
        return ReplayResult(
            bundles=bundles,
            ledger=ledger,
            created=source.created,
            damage=source.damage,
            skipped_blocks=dict(source.skipped_blocks),
            devices=aggregator.devices,
            faults=aggregator.faults,
        )


@dataclass(slots=True)
class SendSummary:
    """What became of the requests of one capture. `messages` are distinct, in order."""

    requests: int = 0
    accepted: int = 0
    failed: int = 0
    size_bytes: int = 0
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What is done to a capture on its way."""

    end_unix_ns: int | None = None
    """Move all times so that the recording ends then; None keeps them. Backends refuse what is older than an hour or
    so."""
    members: Mapping[Link, Sequence[Member]] = field(default_factory=dict)
    """Divide what their batches did."""
    span_attributes: bool = False
    """Ids of spans as attributes of samples too."""


def send_capture(
    path: Path, windows: AggregateOptions, options: OtlpOptions, what: Sending
) -> SendSummary:
    """Replay a capture to a backend, window by window."""
    end_unix_ns = what.end_unix_ns
    shift_to = None if end_unix_ns is None else end_unix_ns - _recorded(path).length_ns
    summary = SendSummary()
    exporter = open_exporter(options)
    try:
        bundles = replay(path, windows, shift_to=shift_to).bundles
        for bundle in split_batches(bundles, what.members):
            dropped: Counter[str] = Counter()
            sent = with_span_attributes(bundle) if what.span_attributes else bundle
            for request in encode_otlp([sent], dropped=dropped):
                _count_result(summary, exporter.export(request))
            for name, value in dropped.items():
                summary.messages.append(
                    f"{value} of {name} dropped: one sample exceeds the request limit"
                )
    finally:
        exporter.close()
    return summary


def _count_result(summary: SendSummary, result: ExportResult) -> None:
    summary.requests += 1
    summary.size_bytes += result.size_bytes
    if result.outcome in (Outcome.ACCEPTED, Outcome.PARTIAL):
        summary.accepted += 1
    if result.outcome is not Outcome.ACCEPTED:
        summary.failed += 1
    if result.message and result.message not in summary.messages:
        summary.messages.append(result.message)


def shift_ns(path: Path, end_unix_ns: int) -> int:
    """By how much times move when the recording shall end at `end_unix_ns`."""
    recorded = _recorded(path)
    return end_unix_ns - recorded.length_ns - recorded.start_unix_ns


class _Recorded(NamedTuple):
    start_unix_ns: int
    length_ns: int
    """From the start of the capture to its last event."""


def _recorded(path: Path) -> _Recorded:
    start_unix_ns, times = 0, [0]
    with ReplaySource(path, call_dtype=wire.CALL) as source:
        for event in source.events():
            if isinstance(event, CaptureStart):
                start_unix_ns = event.time_ns + event.unix_offset_ns
                times = [event.time_ns]
            elif isinstance(event, Watermark):
                times.append(event.time_ns)
    return _Recorded(start_unix_ns, max(times) - min(times))
