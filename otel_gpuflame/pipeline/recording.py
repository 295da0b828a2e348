"""Recording a command or a process into a file and a summary."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from otel_gpuflame.capture.attachments import LateProbes
from otel_gpuflame.capture.bpf.backend import Loader, LoadReport
from otel_gpuflame.capture.command import StoppedCommand
from otel_gpuflame.capture.cupti.inject import injecting_from_start, layering
from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.libraries import installed_libraries
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.errors import SourceUnavailable, TargetError
from otel_gpuflame.events.records import Event
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.pipeline.event_file import EventFile
from otel_gpuflame.pipeline.output_file import open_output
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.device_faults import DeviceFault
from otel_gpuflame.profile.device_use import DeviceUse
from otel_gpuflame.profile.digest import Digest
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

_STEP_NS: Final = 50_000_000
"""A round of the live source: short enough that stacks are resolved while their process still lives."""
_SUMMED_NS: Final = 10_000_000_000
"""For the tables at the end, stacks are kept for so long; what remains of them is a `Digest`."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Record a command, or a running process and its descendants, into a file and a summary."""

    output: Path | None
    command: tuple[str, ...] = ()
    pid: int | None = None
    duration_s: float | None = None
    libraries: tuple[Path, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    unwind: bool = True
    """Whole native stacks of code without frame pointers."""
    cpu: bool = True
    """Also on-CPU samples and off-CPU stacks."""
    driver: bool = True
    """Also system calls on GPU devices, and on `devices`."""
    devices: tuple[Path, ...] = ()
    gpu: bool = True
    """Also when devices executed what they were given: of a command, by injecting our library; of a running process,
    if it was started with it."""
    loader: Loader = Loader.LIBBPF


@dataclass(slots=True)
class RecordResult:
    """What a recording saw. `exit_code` is the command's, None for a running process."""

    bundles: list[Bundle]
    """For tables: see `Digest`."""
    ledger: Ledger
    report: LoadReport
    libraries: tuple[Path, ...]
    attach_errors: tuple[str, ...]
    late: tuple[LateProbes, ...]
    """Libraries that were only probed when a program had mapped them."""
    exit_code: int | None
    duration_ns: int
    output_bytes: int = 0
    output_error: str | None = None
    """Why not everything is in the file."""
    devices: tuple[DeviceUse, ...] = ()
    faults: tuple[DeviceFault, ...] = ()


def record(options: RecordOptions, stopped: Callable[[], bool]) -> RecordResult:
    """Record until the target ends, the duration is over, or `stopped()` says so.

    Raises SourceUnavailable when the host cannot capture, TargetError when the target cannot be started or found. That
    a file takes no more is part of the result.
    """
    with contextlib.ExitStack() as stack:
        environment, has_gpu = _environment(options)
        command = _start_command(options, environment, stack)
        # Opened before anything is attached: an unwritable path must not cost the program its start.
        output = stack.enter_context(open_output(options.output, stopped))
        counters = DeviceCounters() if options.gpu else None
        live_options = _live_options(options, command, gpu=has_gpu)
        live = stack.enter_context(LiveCapture(live_options, counters=counters))
        if counters is not None:
            stack.enter_context(counters)
        start = live.start_event()
        if command is not None:
            command.release()
        sink = None if output is None else output.begin()
        recorder = Recorder(sink, dict(options.attributes))
        recorder.take([start])
        started_ns = time.monotonic_ns()
        while not _is_over(options, command, time.monotonic_ns() - started_ns) and not stopped():
            recorder.take(live.step(_STEP_NS))
        recorder.take(live.finish())
        recorder.close()
        return RecordResult(
            bundles=recorder.digest.bundles(),
            ledger=recorder.aggregator.ledger,
            report=live.report,
            libraries=tuple(library.path for library in live.attachments.libraries),
            attach_errors=live.attachments.errors.texts(),
            late=tuple(live.attachments.late),
            exit_code=command.poll() if command else None,
            duration_ns=time.monotonic_ns() - started_ns,
            output_bytes=recorder.file.written_bytes if recorder.file else 0,
            output_error=recorder.file.error if recorder.file else None,
            devices=recorder.aggregator.devices,
            faults=recorder.aggregator.faults,
        )


class Recorder:
    """Every event goes to the file and into the summary, which keeps no stack for longer than a window.

    The summary goes on where the file has to end.
    """

    def __init__(self, sink: BinaryIO | None, attributes: Mapping[str, str]) -> None:
        self.file = EventFile(sink, attributes) if sink else None
        options = AggregateOptions(window_ns=_SUMMED_NS, span_link=None)
        self.aggregator = CorrelatingAggregator(options)
        self.digest = Digest()

    def take(self, events: Iterable[Event]) -> None:
        """Events in order."""
        for event in events:
            if self.file is not None:
                self.file.write(event)
            self.digest.add(self.aggregator.feed(event))

    def close(self) -> None:
        """Nothing more comes."""
        if self.file is not None:
            self.file.close()
        self.digest.add(self.aggregator.finish())


def _environment(options: RecordOptions) -> tuple[dict[str, str], bool]:
    """The command's environment, and whether times of executions can be had: everything else goes on without them."""
    environment = dict(os.environ)
    if not options.gpu or not options.command:
        return environment, options.gpu
    environment = layering(environment)
    try:
        return injecting_from_start(environment), True
    except SourceUnavailable as error:
        logger.warning("no times of CUDA work are recorded: %s, or give --no-gpu", error)
        return environment, True


def _start_command(
    options: RecordOptions, environment: dict[str, str], stack: contextlib.ExitStack
) -> StoppedCommand | None:
    if not options.command:
        return None
    command = StoppedCommand(options.command, environment)
    stack.callback(_abandon_unreleased, command)
    return command


def _abandon_unreleased(command: StoppedCommand) -> None:
    if not command.released:
        command.abandon()


def _live_options(
    options: RecordOptions, command: StoppedCommand | None, *, gpu: bool
) -> LiveOptions:
    pid = command.pid if command else options.pid
    if pid is None:
        raise TargetError("nothing to record: give a command or --pid")
    libraries = options.libraries
    if command is not None:
        libraries += tuple(installed_libraries(os.environ))
    return LiveOptions(
        pids=(pid,),
        libraries=libraries,
        attributes=options.attributes,
        cpu=options.cpu,
        unwind=options.unwind,
        driver=options.driver,
        devices=options.devices,
        gpu=gpu,
        loader=options.loader,
    )


def _is_over(options: RecordOptions, command: StoppedCommand | None, elapsed_ns: int) -> bool:
    if options.duration_s is not None and elapsed_ns >= options.duration_s * 1e9:
        return True
    if command is not None:
        return command.poll() is not None
    return not _is_alive(options.pid)


def _is_alive(pid: int | None) -> bool:
    """Whether a process exists and is no zombie, which nobody may ever collect."""
    try:
        # As bytes: a process may have any name.
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
