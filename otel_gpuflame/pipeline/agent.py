"""The agent: capture on the whole host within a budget, windows to a queue, the queue to a backend."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_gpuflame.capture.calibrate import sampling_share, trap_cost_ns
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Status
from otel_gpuflame.capture.checks.rights import check_cap_sys_ptrace
from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.capture.room import raise_descriptor_limit
from otel_gpuflame.capture.unix_time import unix_offset_ns
from otel_gpuflame.capture.windows import BudgetOptions
from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.records import CaptureStart
from otel_gpuflame.export import OtlpOptions, open_exporter
from otel_gpuflame.export.agent_snapshot import AgentSnapshot, DeviceErrorCount, DeviceState
from otel_gpuflame.export.delivery import Delivery
from otel_gpuflame.export.options import SelfTelemetryOptions
from otel_gpuflame.pipeline.correlating import CorrelatingAggregator
from otel_gpuflame.pipeline.device_sampling import device_states, error_counts
from otel_gpuflame.pipeline.encoding import EncodingProcess
from otel_gpuflame.pipeline.status import AgentStatus
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.device_faults import DeviceFaults
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.span_attributes import with_span_attributes

if TYPE_CHECKING:
    from otel_gpuflame.export.finding_log import FindingLog
    from otel_gpuflame.export.self_telemetry import SelfTelemetry

logger = logging.getLogger(__name__)

_STEP_NS: Final = 100_000_000
_DRAIN_POLL_NS: Final = 10_000_000
"""A 16 MiB ring holds 110,000 calls: at 100,000 calls/s a second's worth."""
_NS: Final = 1_000_000_000
_CLOCK_MOVED_NS: Final = 100_000_000
"""More than a clock that is adjusted gently differs, as CLOCK_MONOTONIC is adjusted with it; and less than a profile
and a span that do not meet for it."""
_LEAST_SESSION_NS: Final = 10 * _NS
"""A clock that is set again and again does not keep the agent attaching."""
_LAST_METRICS_S: Final = 2.0
"""For the last values of metrics, when all profiles have been sent or given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What to capture and where to send it."""

    destination: OtlpOptions
    window_ns: int = 10 * _NS
    budget: float = 0.01
    duty: float | None = None
    unwind: bool = False
    """Whole native stacks of code without frame pointers."""
    cpu: bool = True
    driver: bool = True
    gpu: bool = True
    """Also when devices executed what they were given, of processes with our injected library, inside windows."""
    span_link: SpanLink = SpanLink.LOCAL_ROOT
    most_spans: int | None = None
    """So many spans of a process are linked in a window; None: all."""
    span_attributes: bool = False
    """Ids of spans as attributes of samples too."""
    shutdown_s: float = 10.0
    self_telemetry: SelfTelemetryOptions | None = None
    """Where the agent's own metrics go; None: nowhere."""
    findings: OtlpOptions | None = None
    """Where log events with findings go; None: rules are not asked."""


@dataclass(slots=True)
class AgentControl:
    """How the outside steers a running agent; set from signal handlers."""

    stop: threading.Event = field(default_factory=threading.Event)
    enabled: bool = True


class Agent:
    """Runs until `control.stop`. Construction may raise; `run` raises SourceUnavailable only at its start."""

    def __init__(self, options: AgentOptions, control: AgentControl) -> None:
        self._options = options
        self._control = control
        self.status = AgentStatus()
        self._finding_log = self._start_finding_log()
        note = self._finding_log.note if self._finding_log else None
        self._encode = EncodingProcess(note)
        self.delivery = Delivery(
            open_exporter(options.destination),
            encode=self._encode,
            encode_whole=self._encode.with_findings,
        )
        self._devices: tuple[DeviceState, ...] = ()
        self._faults = DeviceFaults()
        self._device_errors: tuple[DeviceErrorCount, ...] = ()
        self._telemetry = self._start_telemetry()

    def snapshot(self) -> AgentSnapshot:
        """What is known now. From any thread."""
        return AgentSnapshot(
            capture=self.status.snapshot,
            devices=self._devices,
            device_errors=self._device_errors,
            delivery=self.delivery.counts(),
        )

    def run(self) -> None:
        """Capture and deliver; flushes within the deadline when stopped."""
        raise_descriptor_limit()
        sender = threading.Thread(
            target=self.delivery.run, name="otel-gpuflame-export", daemon=True
        )
        sender.start()
        try:
            budget = self._budget()
            warn_of_unreadable_processes(Host())
            with DeviceCounters() as counters:
                while not self._control.stop.is_set():
                    if self._control.enabled:
                        self._session(budget, counters)
                    else:
                        self._devices = device_states(counters.latest(), lambda _pid: None)
                        self._control.stop.wait(0.2)
        finally:
            self._shut_down(sender)

    def _start_telemetry(self) -> SelfTelemetry | None:
        if self._options.self_telemetry is None:
            return None
        # Imported here, since loading the SDK takes a twentieth of a second that other commands need not.
        from otel_gpuflame.export.self_telemetry import SelfTelemetry  # noqa: PLC0415

        return SelfTelemetry(self._options.self_telemetry, self.snapshot)

    def _start_finding_log(self) -> FindingLog | None:
        if self._options.findings is None:
            return None
        from otel_gpuflame.export.finding_log import FindingLog  # noqa: PLC0415

        return FindingLog(self._options.findings)

    def _shut_down(self, sender: threading.Thread) -> None:
        """Within the deadline, also when a request hangs."""
        self.delivery.close(self._options.shutdown_s)
        sender.join(self._options.shutdown_s + 0.5)
        if sender.is_alive():
            self.delivery.abort()
            sender.join(0.5)
        self._encode.close()
        left = self.delivery.counts().waiting
        if left:
            logger.warning("export: %d profiles were on their way when time was up", left)
        if self._finding_log is not None:
            self._finding_log.close(_LAST_METRICS_S)
        if self._telemetry is not None:
            self._telemetry.close(_LAST_METRICS_S)

    def _budget(self) -> BudgetOptions:
        trap_ns = trap_cost_ns()
        sampling = sampling_share() if self._options.cpu else 0.0
        logger.info(
            "a probe without its program costs %.0f ns, the timer of CPU samples %.2f %% of a thread's time",
            trap_ns,
            100 * sampling,
        )
        return BudgetOptions(self._options.budget, self._options.duty, trap_ns, sampling)

    def _session(self, budget: BudgetOptions, counters: DeviceCounters) -> None:
        """One stretch of capture: until stopped, switched off, killed for its cost, or in another time."""
        live_options = LiveOptions(
            host_wide=True,
            budget=budget,
            unwind=self._options.unwind,
            cpu=self._options.cpu,
            driver=self._options.driver,
            gpu=self._options.gpu,
            poll_ns=_DRAIN_POLL_NS,
        )
        aggregator = CorrelatingAggregator(
            AggregateOptions(
                window_ns=self._options.window_ns,
                span_link=self._options.span_link,
                most_spans=self._options.most_spans,
                sampled=True,
            )
        )
        self.status.begin(aggregator.ledger)
        with LiveCapture(live_options, counters=counters) as live:
            for program, consequence in live.report.missing.items():
                logger.warning("%s is not available here: %s", program, consequence)
            start = live.start_event()
            aggregator.feed(start)
            while self._control.enabled and not self._control.stop.is_set():
                if _clock_was_set(start):
                    break
                for event in live.step(_STEP_NS):
                    self._faults.feed(event)
                    self._deliver(aggregator.feed(event))
                self._note(live, counters, aggregator)
            for event in live.finish():
                self._faults.feed(event)
                self._deliver(aggregator.feed(event))
            self._deliver(aggregator.finish())
            aggregator.keep_books()
            self._device_errors = error_counts(self._faults.faults())
            self.status.publish()

    def _deliver(self, bundles: Iterable[Bundle]) -> None:
        for bundle in bundles:
            self.status.add(bundle)
            is_named = self._options.span_attributes
            self.delivery.put(with_span_attributes(bundle) if is_named else bundle)

    def _note(
        self, live: LiveCapture, counters: DeviceCounters, aggregator: CorrelatingAggregator
    ) -> None:
        state = live.budget_state
        if state is None:
            return
        if state.killed:
            self._control.enabled = False
        if not self.status.is_due(time.monotonic_ns()):
            return
        aggregator.keep_books()
        pids = set(live.targets.pids())
        self._devices = device_states(
            counters.latest(),
            lambda pid: self.status.label(live.targets.service_name(pid)) if pid in pids else None,
        )
        self._device_errors = error_counts(self._faults.faults())
        services = {pid: live.targets.service_name(pid) for pid in state.costs}
        self.status.publish(
            targets=len(pids),
            is_capturing=True,
            duty=state.duty,
            switch_ns=state.switch_ns,
            overheads={pid: (name, state.overhead(pid)) for pid, name in services.items()},
        )


def _clock_was_set(start: CaptureStart) -> bool:
    """Whether unix time is another one than what the capture was begun with says, and it is time to begin anew."""
    if time.monotonic_ns() - start.time_ns < _LEAST_SESSION_NS:
        return False
    moved_ns = unix_offset_ns() - start.unix_offset_ns
    if abs(moved_ns) < _CLOCK_MOVED_NS:
        return False
    logger.warning(
        "the clock was set by %+.1f s, or the host slept so long: capture begins anew, in the time that it is now",
        moved_ns / _NS,
    )
    return True


def warn_of_unreadable_processes(host: Host) -> None:
    """Say it once where we lack the right to look into other users' processes: calls come, but nobody knows whose."""
    check = check_cap_sys_ptrace(host)
    if check.status is not Status.OK:
        logger.warning("%s: %s; %s", check.name, check.detail, check.remedy)


def run_agent(options: AgentOptions, control: AgentControl) -> AgentStatus:
    """Run an agent until `control.stop`; what it did."""
    agent = Agent(options, control)
    agent.run()
    return agent.status
