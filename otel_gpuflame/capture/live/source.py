"""One call of `step` is one round of the live source.

It swaps the drain's buffers, follows the processes, resolves new stacks and names, and only then hands out the calls
that refer to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.autograd import SeenPasses
from otel_gpuflame.capture.bpf.backend import LoadReport
from otel_gpuflame.capture.bpf.loading import load_backend
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.devices import GpuDevices
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.capture.live.accounting import Accounting
from otel_gpuflame.capture.live.descriptions import Descriptions
from otel_gpuflame.capture.live.device_side import DeviceSide
from otel_gpuflame.capture.live.naming import LiveNames, named_calls
from otel_gpuflame.capture.live.options import LiveOptions
from otel_gpuflame.capture.live.probing import Probing
from otel_gpuflame.capture.live.processes import ProcessReports
from otel_gpuflame.capture.live.stacks import LiveStacks
from otel_gpuflame.capture.replaced import Replaced, ReplacedPrograms
from otel_gpuflame.capture.seen_returns import SeenReturns
from otel_gpuflame.capture.target import SETTLE_NS
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.capture.unix_time import unix_offset_ns
from otel_gpuflame.capture.windows import BudgetState
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import (
    Calls,
    CaptureStart,
    Event,
    LossCount,
    ProcessesEnded,
    Watermark,
)
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf_files import ElfFiles

_CALLS, _STACKS, _NAMES, _PROCESSES = range(4)
# BPF takes the time of an event a little before it reserves its place in the ring: a thread that loses the CPU in
# between delivers late. Later than this is possible and harmless: such a call is counted in the next window.
_LATENESS_NS: Final = 20_000_000
_SCAN_EVERY_NS: Final = 1_000_000_000
_LAST_EXECUTIONS_NS: Final = 1_000_000_000
"""The library waits as long for work that was launched to end, before it gives up."""
_LAST_EXECUTIONS_STEP_NS: Final = 5_000_000


class LiveCapture:
    """Context manager: entering loads BPF and attaches; `step` returns events; leaving detaches everything.

    `counters` of devices, which whoever made them closes, come along. Raises SourceUnavailable or TargetError on entry,
    never later.
    """

    def __init__(
        self,
        options: LiveOptions,
        proc: Path = Path("/proc"),
        counters: DeviceCounters | None = None,
    ) -> None:
        self._options = options
        self._kernel = load_backend(options.loader, options.rings, options.features(proc))
        majors = self._kernel.gpu_majors if options.driver else None
        self._gpu_files = GpuDevices(majors, proc) if majors is not None else None
        self._drain = self._kernel.open_drain(options.poll_ns)
        # Programs that BCC compiles walk no Python frames and read no span: there is nothing to take over.
        passes_since, waits_since = self._kernel.passes_since, self._kernel.waits_since
        self._attachments = Attachments(
            self._kernel.uprobes,
            in_windows=options.budget is not None,
            passes=SeenPasses(passes_since) if passes_since is not None else None,
            returns=SeenReturns(waits_since) if waits_since is not None else None,
        )
        files = ElfFiles()
        self._targets = Targets(
            self._kernel,
            self._attachments,
            host_wide=options.host_wide,
            watches_cupti=options.gpu,
            proc=proc,
            files=files,
        )
        demangler = Demangler()
        self._devices = self._device_side(demangler, proc, counters)
        maps = self._kernel.unwind_maps if options.unwind else None
        self._stacks = LiveStacks(proc, files, maps, self._kernel.forget_stack)
        self._names = LiveNames(demangler.demangle)
        self._replaced = ReplacedPrograms()
        self._processes = ProcessReports(
            self._targets, self._replaced, self._stacks, self._names, self._devices
        )
        self._descriptions = Descriptions(self._targets, self._replaced, self._devices.know)
        self._probing = Probing(
            self._kernel, self._attachments, self._targets, self._devices, options.budget
        )
        self._accounting = Accounting(self._losses)
        self._ended: list[ProcessKey] = []
        self._scan_due_ns = 0

    def _device_side(
        self, demangler: Demangler, proc: Path, counters: DeviceCounters | None
    ) -> DeviceSide:
        devices = HostDevices()
        gpu = None
        if self._options.gpu:
            gpu = GpuSource(
                demangler.demangle,
                proc,
                devices,
                prepare=self._targets.probe_libraries,
                yields=self._options.host_wide,
            )
        return DeviceSide(gpu, counters, devices)

    def __enter__(self) -> LiveCapture:
        try:
            self._find_targets(time.monotonic_ns())
            self._drain.start()
            self._stacks.start()
            self._devices.start(in_windows=self._options.budget is not None)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def report(self) -> LoadReport:
        """What the host's kernel gave us."""
        return self._kernel.report

    @property
    def targets(self) -> Targets:
        """The processes being captured."""
        return self._targets

    @property
    def attachments(self) -> Attachments:
        """The libraries with probes."""
        return self._attachments

    @property
    def probing(self) -> Probing:
        """What is probed always, and the windows of the rest."""
        return self._probing

    @property
    def budget_state(self) -> BudgetState | None:
        """What was decided last about windows; None without a budget."""
        return self._probing.budget_state

    def start_event(self) -> CaptureStart:
        """The first event of the capture."""
        return CaptureStart(time.monotonic_ns(), unix_offset_ns(), self._options.attributes)

    def step(self, timeout_ns: int) -> list[Event]:
        """One round; waits up to `timeout_ns` for something urgent (0: sweep the rings and do not wait)."""
        is_last = timeout_ns == 0
        opened = self._probing.step()
        complete_ns = self._drain.swap(self._until_next_edge(timeout_ns))
        ended = self._ended
        # Once more: calls that have just come may belong to a stratum that began meanwhile.
        opened += self._probing.step()
        replaced = self._replaced.take()
        now_ns = time.monotonic_ns()
        self._ended = self._processes.apply(self._drain.data(_PROCESSES), now_ns)
        # At once: what a program gives its devices before there is a lease is not recorded.
        self._devices.look(self._targets.gpu_pids())
        if is_last:
            replaced += self._replaced.take()
        # Stacks first: their process may be about to end, and looking at processes takes milliseconds.
        events: list[Event] = [*opened, *self._stacks.events(self._drain.data(_STACKS))]
        self._look_at_processes(now_ns)
        events += self._calls(replaced)
        events += self._devices.events(self._targets.gpu_pids(), self._kernel.take_xids())
        events += self._accounting.events(force=is_last)
        # One round later than their end was reported: the drain takes the ring of processes further than that of calls,
        # so the last calls of a process may only come now.
        for process in ended:
            self._forget(process)
        if ended:
            events.append(ProcessesEnded(tuple(ended)))
        events += self._stacks.let_go()
        if complete_ns:
            events.append(Watermark(complete_ns if is_last else complete_ns - _LATENESS_NS))
        return events

    def finish(self) -> list[Event]:
        """Detach, then return everything that is left.

        In this order: windows of the GPU side end, while probes still see each launch; then probes go, the drain stops,
        and both rings are emptied. So no execution is left without its launch.
        """
        self._devices.ask_for_last()
        events = self._last_executions()
        self._probing.stop()
        self._attachments.close()
        self._kernel.detach()
        self._drain.stop()
        self._devices.wait_for_counters()
        events += self.step(0)
        # What a full buffer had no room for is still in the ring.
        while len(self._drain.data(_CALLS)):
            events += self.step(0)
        return events + self._devices.close()

    def close(self) -> None:
        """Detach and free everything. Safe to call twice."""
        self._devices.close()
        self._drain.close()
        self._stacks.close()
        self._attachments.close()
        self._kernel.close()

    def _find_targets(self, now_ns: int) -> None:
        """Attach to what was asked for."""
        if self._gpu_files is not None:
            self._gpu_files.look()
            self._gpu_files.add(self._options.devices)
        for path in self._options.libraries:
            self._attachments.attach(path, now_ns)
        for pid in self._options.pids:
            self._targets.add_tree(pid, now_ns)
        if self._options.host_wide:
            self._kernel.watch_host()
            self._targets.scan(now_ns)
        self._targets.look(now_ns)

    def _until_next_edge(self, timeout_ns: int) -> int:
        """Nanoseconds until a window opens or closes, or a process that has changed is looked at.

        At least 1, since 0 means "sweep now".
        """
        if timeout_ns == 0:
            return 0
        if self._processes.any_changed:
            timeout_ns = min(timeout_ns, SETTLE_NS)
        for due_ns in (self._devices.next_look_ns(), self._probing.next_edge_ns):
            if due_ns is not None:
                timeout_ns = min(timeout_ns, max(due_ns - time.monotonic_ns(), 1))
        return timeout_ns

    def _look_at_processes(self, now_ns: int) -> None:
        """Find new libraries and interpreters where something has changed."""
        if now_ns >= self._scan_due_ns:
            self._scan_due_ns = now_ns + _SCAN_EVERY_NS
            self._ended += self._targets.drop_gone(now_ns)
            self._targets.look_again_if_unnotified(now_ns)
            if self._gpu_files is not None:
                self._gpu_files.look()
            if self._options.host_wide:
                self._targets.keep_libraries(now_ns)
            self._probing.choose_names(now_ns)
        self._targets.look(now_ns)
        self._processes.prepare_stacks()

    def _calls(self, replaced: list[Replaced]) -> Iterator[Event]:
        """Calls, after what they refer to. Those of programs that were replaced come first, and end them.

        One round after the report, for the same reason as with ends.
        """
        rows = self._devices.without_cupti(self._replaced.join(self._drain.data(_CALLS)))
        for program in replaced:
            is_before = program.before(rows)
            before, rows = rows[is_before], rows[~is_before]
            yield from self._descriptions.end_program(program, has_calls=len(before) > 0)
            if len(before):
                yield Calls(before)
            yield ProcessesEnded((program.change.process,))
        rows = self._replaced.hold_back(rows)
        self._stacks.ask_for_lost(rows)
        self._probing.count_calls(rows)
        yield from self._descriptions.events(rows)
        names = self._names.learn(self._drain.data(_NAMES))
        self._probing.count_names(names.repeated)
        yield from named_calls(rows, names)

    def _last_executions(self) -> list[Event]:
        """Wait for them: work that was launched must end first."""
        events: list[Event] = []
        until_ns = time.monotonic_ns() + _LAST_EXECUTIONS_NS
        while not self._devices.is_idle and time.monotonic_ns() < until_ns:
            events += self.step(_LAST_EXECUTIONS_STEP_NS)
        return events

    def _forget(self, process: ProcessKey) -> None:
        self._targets.forget(process.tgid)
        self._stacks.forget(process)
        self._names.forget(process)
        self._descriptions.forget(process)
        self._devices.forget(process)

    def _losses(self) -> list[LossCount]:
        """Running totals of everything that is counted."""
        readers = (self._processes, self._stacks, self._names)
        undecodable = sum(reader.undecodable for reader in readers)
        return [
            *self._kernel.counters(),
            LossCount("record", "undecodable", undecodable + self._drain.malformed(_CALLS)),
            LossCount("library", "probed_late", self._attachments.late_count),
            LossCount("library", "not_probed", self._attachments.errors.total),
            LossCount("library", "table_full", self._attachments.without_room),
            LossCount("process", "unreadable", self._targets.unreadable),
            LossCount("target", "table_full", self._targets.refused),
            LossCount("process", "end_unreported", self._targets.unreported),
            *self._stacks.counters(),
            *self._names.counters(),
            *self._devices.losses(),
        ]
