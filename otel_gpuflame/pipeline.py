"""The only module that knows all stages: it connects sources to aggregation, files and exporters."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from otel_gpuflame.capture.bpf.kernel import LoadReport
from otel_gpuflame.capture.command import StoppedCommand
from otel_gpuflame.capture.libraries import installed_libraries
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events import wire
from otel_gpuflame.events.capture_writer import CaptureWriter
from otel_gpuflame.events.records import CaptureStart, Event, Watermark
from otel_gpuflame.export import ExportResult, OtlpOptions, Outcome, open_exporter
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.model import Bundle

_STEP_NS: Final = 50_000_000
"""A round of the live source: short enough that stacks are resolved while their process still lives."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Record a command, or a running process and its descendants, into a file and a summary."""

    output: Path | None
    command: tuple[str, ...] = ()
    pid: int | None = None
    duration_s: float | None = None
    libraries: tuple[Path, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class RecordResult:
    """What a recording saw. `exit_code` is the command's, None for a running process."""

    bundles: list[Bundle]
    ledger: Ledger
    report: LoadReport
    libraries: tuple[Path, ...]
    attach_errors: tuple[str, ...]
    exit_code: int | None
    duration_ns: int
    output_bytes: int = 0


@dataclass(slots=True)
class ReplayResult:
    """What a capture file held."""

    bundles: list[Bundle]
    ledger: Ledger
    created: dict[str, str]
    damage: str | None
    skipped_blocks: dict[int, int] = field(default_factory=dict)


def record(options: RecordOptions, stopped: Callable[[], bool]) -> RecordResult:
    """Record until the target ends, the duration is over, or `stopped()` says so.

    Raises SourceUnavailable when the host cannot capture, TargetError when the target cannot be started or found.
    """
    with contextlib.ExitStack() as stack:
        command = _start_command(options, stack)
        # Opened before anything is attached: an unwritable path must not cost the program its start.
        sink = _open_output(options.output, stack)
        live = stack.enter_context(LiveCapture(_live_options(options, command)))
        recorder = _Recorder(sink, options)
        recorder.take([live.start_event()])
        if command is not None:
            command.release()
        started_ns = time.monotonic_ns()
        while not _is_over(options, command, time.monotonic_ns() - started_ns) and not stopped():
            recorder.take(live.step(_STEP_NS))
        recorder.take(live.finish())
        recorder.close()
        return RecordResult(
            bundles=recorder.bundles,
            ledger=recorder.aggregator.ledger,
            report=live.report,
            libraries=tuple(library.path for library in live.attachments.libraries),
            attach_errors=tuple(live.attachments.errors),
            exit_code=command.poll() if command else None,
            duration_ns=time.monotonic_ns() - started_ns,
            output_bytes=sink.tell() if sink else 0,
        )


def replay(path: Path, options: AggregateOptions, *, shift_to: int | None = None) -> ReplayResult:
    """Aggregate a whole capture file. Raises CaptureFileError if nothing of it can be read."""
    bundles: list[Bundle] = []
    aggregator = Aggregator(options)
    with ReplaySource(path, shift_to_unix_ns=shift_to, call_dtype=wire.CALL) as source:
        for event in source.events():
            bundles += aggregator.feed(event)
        bundles += aggregator.finish()
        return ReplayResult(
            bundles=bundles,
            ledger=aggregator.ledger,
            created=source.created,
            damage=source.damage,
            skipped_blocks=dict(source.skipped_blocks),
        )


class _Recorder:
    """Every event goes to the file and into the summary."""

    def __init__(self, sink: BinaryIO | None, options: RecordOptions) -> None:
        self._writer = CaptureWriter(sink, created=dict(options.attributes)) if sink else None
        self.aggregator = Aggregator(AggregateOptions(window_ns=None, span_link=None))
        self.bundles: list[Bundle] = []

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._writer is not None:
                self._writer.write(event)
            self.bundles += self.aggregator.feed(event)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.bundles += self.aggregator.finish()


def _start_command(options: RecordOptions, stack: contextlib.ExitStack) -> StoppedCommand | None:
    if not options.command:
        return None
    command = StoppedCommand(options.command)
    stack.callback(_abandon_unreleased, command)
    return command


def _abandon_unreleased(command: StoppedCommand) -> None:
    if not command.released:
        command.abandon()


def _live_options(options: RecordOptions, command: StoppedCommand | None) -> LiveOptions:
    pid = command.pid if command else options.pid
    if pid is None:
        raise TargetError("nothing to record: give a command or --pid")
    libraries = options.libraries
    if command is not None:
        libraries += tuple(installed_libraries(os.environ))
    return LiveOptions(pids=(pid,), libraries=libraries, attributes=options.attributes)


def _open_output(path: Path | None, stack: contextlib.ExitStack) -> BinaryIO | None:
    if path is None:
        return None
    try:
        return stack.enter_context(path.open("wb", buffering=0))
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}") from error


def _is_over(options: RecordOptions, command: StoppedCommand | None, elapsed_ns: int) -> bool:
    if options.duration_s is not None and elapsed_ns >= options.duration_s * 1e9:
        return True
    if command is not None:
        return command.poll() is not None
    return not _is_alive(options.pid)


def _is_alive(pid: int | None) -> bool:
    """Whether a process exists and is no zombie, which nobody may ever collect."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


@dataclass(slots=True)
class SendSummary:
    """What became of the requests of one capture. `messages` are distinct, in order."""

    requests: int = 0
    accepted: int = 0
    failed: int = 0
    size_bytes: int = 0
    messages: list[str] = field(default_factory=list)


def send_capture(
    path: Path, windows: AggregateOptions, options: OtlpOptions, end_unix_ns: int | None
) -> SendSummary:
    """Replay a capture to a backend, window by window.

    `end_unix_ns` moves all times so that the recording ends then; None keeps them. Backends refuse what is older than
    an hour or so.
    """
    shift_to = None if end_unix_ns is None else end_unix_ns - _length_ns(path)
    summary = SendSummary()
    exporter = open_exporter(options)
    try:
        for bundle in replay(path, windows, shift_to=shift_to).bundles:
            dropped: Counter[str] = Counter()
            for request in encode_otlp([bundle], dropped=dropped):
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


def _length_ns(path: Path) -> int:
    """Time between the start of a capture and its last event."""
    with ReplaySource(path, call_dtype=wire.CALL) as source:
        times = [e.time_ns for e in source.events() if isinstance(e, (CaptureStart, Watermark))]
    return max(times, default=0) - min(times, default=0)
