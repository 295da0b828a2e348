"""The live source: what happens on this host now, as events.

One call of `step` is one round: swap the drain's buffers, follow the processes, resolve new stacks and names, and only
then hand out the calls that refer to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.backend import Loader, LoadReport, RingSizes
from otel_gpuflame.capture.bpf.decode import (
    ProcessChange,
    decode_name,
    decode_process,
    decode_stack,
)
from otel_gpuflame.capture.bpf.drain import POLL_NS, split_records
from otel_gpuflame.capture.bpf.loading import load_backend
from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.capture.cupti.cost import GUARD_NS, RECORD_NS, SHORTEST_NS, SWITCH_NS
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.capture.describe import Attributes
from otel_gpuflame.capture.device_counters import DeviceCounters, metric_events
from otel_gpuflame.capture.device_errors import error_events
from otel_gpuflame.capture.devices import GpuDevices, nvidia_is_loaded
from otel_gpuflame.capture.distinct import DistinctPairs
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.capture.known_stacks import KnownStacks
from otel_gpuflame.capture.names import LearnedNames, NameTable
from otel_gpuflame.capture.replaced import Replaced, ReplacedPrograms
from otel_gpuflame.capture.target import SETTLE_NS
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.capture.unwinding.feeder import TableFeeder
from otel_gpuflame.capture.windows import BudgetOptions, BudgetState, WindowControl
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    LossCount,
    Names,
    ProcessesEnded,
    SamplingWindow,
    SourceCounters,
    Stacks,
    StacksForgotten,
    TargetInfo,
    Watermark,
)
from otel_gpuflame.events.records import Targets as TargetsEvent
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.symbolizer import Symbolizer

_CALLS, _STACKS, _NAMES, _PROCESSES = range(4)
# BPF takes the time of an event a little before it reserves its place in the ring: a thread that loses the CPU in
# between delivers late. Later than this is possible and harmless: such a call is counted in the next window.
_LATENESS_NS: Final = 20_000_000
_MAX_BATCH: Final = 1 << 16
"""Calls in one event. Larger batches leave the processor's caches, and whoever has fallen behind must not become
slower: with whole buffers of 1.8 million, 1,000,000 calls/s could not be held."""
_COUNTERS_EVERY_NS: Final = 1_000_000_000
_SCAN_EVERY_NS: Final = 1_000_000_000
_LAST_EXECUTIONS_NS: Final = 1_000_000_000
"""The library waits as long for work that was launched to end, before it gives up."""
_LAST_EXECUTIONS_STEP_NS: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What to capture. `pids` are captured with their present and future descendants."""

    pids: tuple[int, ...] = ()
    libraries: tuple[Path, ...] = ()
    """Libraries to probe at once; others are found when a process maps them."""
    host_wide: bool = False
    """Capture every process that uses a GPU library, now or later."""
    budget: BudgetOptions | None = None
    """Capture calls that return at once only in windows, within this budget."""
    unwind: bool = False
    """Walk native stacks by unwind tables, where the kernel takes the search: 0.4 µs more a frame and hit."""
    cpu: bool = False
    """Also on-CPU samples and off-CPU stacks."""
    driver: bool = False
    """Also system calls on GPU devices."""
    devices: tuple[Path, ...] = ()
    """Device files that `driver` takes for GPUs besides those of known drivers."""
    gpu: bool = False
    """Also when devices executed what they were given, of processes with our injected library: in windows, where there
    is a budget."""
    loader: Loader = Loader.LIBBPF
    rings: RingSizes = field(default_factory=RingSizes)
    poll_ns: int = POLL_NS
    """Pause of the drain between sweeps."""
    attributes: tuple[tuple[str, str], ...] = ()


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
        self._proc = proc
        self._kernel = load_backend(options.loader, options.rings, _features(options, proc))
        majors = self._kernel.gpu_majors if options.driver else None
        self._devices = GpuDevices(majors, proc) if majors is not None else None
        self._drain = self._kernel.open_drain(options.poll_ns)
        self._attachments = Attachments(
            self._kernel.uprobes,
            in_windows=options.budget is not None,
            # Programs that BCC compiles walk no Python frames and read no span: there is nothing to take over.
            autograd=options.loader is Loader.LIBBPF,
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
        self._windows = self._window_control()
        self._symbolizer = Symbolizer(proc, files)
        demangler = Demangler()
        self._names = NameTable(demangler.demangle)
        self._host_devices = HostDevices()
        self._device_counters = counters
        self._gpu = None
        if options.gpu:
            self._gpu = GpuSource(
                demangler.demangle,
                proc,
                self._host_devices,
                prepare=self._targets.probe_libraries,
                yields=options.host_wide,
            )
        maps = self._kernel.unwind_maps if options.unwind else None
        self._tables = TableFeeder(maps, proc) if maps is not None else None
        self._known_stacks = KnownStacks()
        self._stacks_seen = DistinctPairs()
        self._processes_seen = DistinctPairs()
        self._described: dict[ProcessKey, Attributes] = {}
        self._ended: list[ProcessKey] = []
        self._changed: set[ProcessKey] = set()
        self._replaced = ReplacedPrograms()
        self._undecodable = 0
        self._lost_stacks = 0
        self._last_counters: tuple[LossCount, ...] = ()
        self._counters_due_ns = 0
        self._scan_due_ns = 0

    def __enter__(self) -> LiveCapture:
        try:
            now_ns = time.monotonic_ns()
            if self._devices is not None:
                self._devices.look()
                self._devices.add(self._options.devices)
            for path in self._options.libraries:
                self._attachments.attach(path, now_ns)
            for pid in self._options.pids:
                self._targets.add_tree(pid, now_ns)
            if self._options.host_wide:
                self._kernel.watch_host()
                self._targets.scan(now_ns)
            self._targets.look(now_ns)
            self._drain.start()
            if self._tables is not None:
                self._tables.start()
            if self._device_counters is not None:
                # What was read before this capture is not its own.
                self._device_counters.take()
            if self._gpu is not None:
                # After the probes: an execution belongs to a launch that they have seen.
                if self._options.budget is None:
                    self._gpu.begin(time.monotonic_ns())
                self._gpu.start()
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
    def budget_state(self) -> BudgetState | None:
        """What was decided last about windows; None without a budget."""
        return None if self._windows is None else self._windows.state

    def start_event(self) -> CaptureStart:
        """The first event of the capture."""
        now_ns = time.monotonic_ns()
        return CaptureStart(now_ns, time.time_ns() - now_ns, self._options.attributes)

    def step(self, timeout_ns: int) -> list[Event]:
        """One round; waits up to `timeout_ns` for something urgent (0: sweep the rings and do not wait)."""
        opened = self._step_windows()
        complete_ns = self._drain.swap(self._until_next_edge(timeout_ns))
        ended = self._ended
        # Once more: calls that have just come may belong to a stratum that began meanwhile.
        opened += self._step_windows()
        replaced = self._replaced.take()
        now_ns = time.monotonic_ns()
        self._ended = self._follow_processes(now_ns)
        # At once: what a program gives its devices before there is a lease is not recorded.
        self._look_for_regions()
        if timeout_ns == 0:
            replaced += self._replaced.take()
        # Stacks first: their process may be about to end, and looking at processes takes milliseconds.
        events: list[Event] = [*opened, *self._references()]
        self._look_at_processes(now_ns)
        rows = self._without_cupti(self._replaced.join(self._drain.data(_CALLS)))
        for program in replaced:
            events += self._replace(program, rows)
            rows = rows[~program.before(rows)]
        rows = self._replaced.hold_back(rows)
        events += self._calls(rows)
        events += self._executions()
        events += self._metrics()
        events += error_events(self._kernel.take_xids(), self._device_counters, self._host_devices)
        events += self._counters(force=timeout_ns == 0)
        # One round later than their end was reported: the drain takes the ring of processes further than that of calls,
        # so the last calls of a process may only come now.
        for process in ended:
            self._forget(process)
        if ended:
            events.append(ProcessesEnded(tuple(ended)))
        events += self._let_go_of_stacks()
        if complete_ns:
            events.append(Watermark(complete_ns - _LATENESS_NS if timeout_ns else complete_ns))
        return events

    def open_window(self) -> None:
        """Attach windowed probes to every library."""
        self._attachments.open_window()

    def record(self, close_ns: int | None) -> None:
        """Have libraries in programs record until `close_ns`, once probes are attached.

        They close by themselves, a little before: so probes see every launch that is recorded, however late we are.
        """
        if self._gpu is None:
            return
        now_ns = time.monotonic_ns()
        if close_ns is None:
            self._gpu.begin(now_ns)
        elif now_ns + SHORTEST_NS <= close_ns - GUARD_NS:
            self._gpu.begin(now_ns, close_ns - GUARD_NS)

    def close_window(self) -> None:
        """End both."""
        if self._gpu is not None:
            self._gpu.finish()
        self._attachments.close_window()

    def costs(self) -> dict[int, tuple[int, int]]:
        """(hits, nanoseconds in programs) of each living target by pid, running totals."""
        found = ((pid, self._kernel.cost_of(pid)) for pid in self._targets.pids())
        return {pid: cost for pid, cost in found if cost is not None}

    def record_costs(self) -> dict[int, int]:
        """Nanoseconds that records of executions have cost each target by pid, running totals."""
        if self._gpu is None:
            return {}
        return {pid: count * RECORD_NS for pid, count in self._gpu.records().items()}

    def record_switch_ns(self) -> int:
        """What it stalls a target to begin and to end recording, besides what probes take; 0 where none records."""
        return SWITCH_NS if self._gpu is not None and self._gpu.records() else 0

    def _window_control(self) -> WindowControl | None:
        budget = self._options.budget
        return None if budget is None else WindowControl(self, budget, Random())  # noqa: S311 (no secret)

    def _step_windows(self) -> list[SamplingWindow]:
        if self._windows is None or not self._attachments.libraries:
            return []
        return self._windows.step(time.monotonic_ns(), time.monotonic_ns)

    def _until_next_edge(self, timeout_ns: int) -> int:
        """Nanoseconds until a window opens or closes, or a process that has changed is looked at.

        At least 1, since 0 means "sweep now".
        """
        edge_ns = self._windows.next_edge_ns if self._windows is not None else None
        if timeout_ns and self._changed:
            timeout_ns = min(timeout_ns, SETTLE_NS)
        look_ns = self._gpu.next_look_ns() if self._gpu is not None else None
        if timeout_ns and look_ns is not None:
            timeout_ns = min(timeout_ns, max(look_ns - time.monotonic_ns(), 1))
        if edge_ns is None or timeout_ns == 0:
            return timeout_ns
        return min(timeout_ns, max(edge_ns - time.monotonic_ns(), 1))

    def finish(self) -> list[Event]:
        """Detach, then return everything that is left.

        In this order: windows of the GPU side end, while probes still see each launch; then probes go, the drain stops,
        and both rings are emptied. So no execution is left without its launch.
        """
        if self._device_counters is not None:
            self._device_counters.ask()
        events = self._finish_gpu()
        if self._windows is not None:
            self._windows.stop(time.monotonic_ns)
        self._attachments.close()
        self._kernel.detach()
        self._drain.stop()
        if self._device_counters is not None:
            self._device_counters.wait_for_answer()
        events += self.step(0)
        # What a full buffer had no room for is still in the ring.
        while len(self._drain.data(_CALLS)):
            events += self.step(0)
        if self._gpu is not None:
            events += self._gpu.close(time.monotonic_ns())
        return events

    def _finish_gpu(self) -> list[Event]:
        """End the leases, and wait for the last executions: work that was launched must end first."""
        events: list[Event] = []
        if self._gpu is not None:
            self._gpu.finish()
            until_ns = time.monotonic_ns() + _LAST_EXECUTIONS_NS
            while not self._gpu.is_idle and time.monotonic_ns() < until_ns:
                events += self.step(_LAST_EXECUTIONS_STEP_NS)
        return events

    def close(self) -> None:
        """Detach and free everything. Safe to call twice."""
        if self._gpu is not None:
            self._gpu.close(time.monotonic_ns())
        self._drain.close()
        if self._tables is not None:
            self._tables.close()
        self._attachments.close()
        self._kernel.close()

    def _follow_processes(self, now_ns: int) -> list[ProcessKey]:
        """Apply process changes; returns processes that ended, whose last stacks are still to be resolved."""
        ended = []
        self._changed.clear()
        for record in split_records(self._drain.data(_PROCESSES)):
            change = decode_process(record)
            if change is None:
                self._undecodable += 1
                continue
            former = self._targets.apply(change, now_ns)
            if self._gpu is not None:
                self._gpu.follow(change, now_ns)
            self._follow_tables(change)
            if change.change is wire.ProcessChange.EXIT:
                ended.append(change.process)
                continue
            if former is not None:
                self._names.forget(change.process)
                self._replaced.add(Replaced(change, former))
            self._symbolizer.refresh(change.process)
            self._changed.add(change.process)
        self._targets.attend(now_ns)
        return ended

    def _follow_tables(self, change: ProcessChange) -> None:
        if self._tables is None:
            return
        if change.change in (wire.ProcessChange.EXIT, wire.ProcessChange.EXEC):
            self._tables.forget(change.process)
        else:
            self._tables.changed(change.process)

    def _look_at_processes(self, now_ns: int) -> None:
        """Find new libraries and interpreters where something has changed; the first stack finds all ready."""
        if now_ns >= self._scan_due_ns:
            self._scan_due_ns = now_ns + _SCAN_EVERY_NS
            self._targets.look_again_if_unnotified(now_ns)
            if self._devices is not None:
                self._devices.look()
            if self._options.host_wide:
                self._targets.keep_libraries(now_ns)
        self._targets.look(now_ns)
        for process in self._changed:
            if self._targets.uses_gpu_library(process.tgid):
                self._symbolizer.prepare(process)
                if self._tables is not None:
                    self._tables.want(process, ())

    def _executions(self) -> list[Event]:
        """What the GPU side says. After the calls, which tell who the processes are."""
        if self._gpu is None:
            return []
        self._look_for_regions()
        return self._gpu.step(time.monotonic_ns())

    def _metrics(self) -> list[Event]:
        """What devices say of themselves. After executions, which tell whose work it may be."""
        if self._device_counters is None:
            return []
        return metric_events(self._device_counters.take(), self._host_devices)

    def _look_for_regions(self) -> None:
        if self._gpu is not None:
            pids = [pid for pid in self._targets.pids() if self._targets.uses_gpu_library(pid)]
            self._gpu.look(pids, time.monotonic_ns())

    def _references(self) -> Iterator[Event]:
        """Stacks, which calls refer to."""
        records = split_records(self._drain.data(_STACKS))
        raws = [raw for record in records if (raw := self._new_stack(record)) is not None]
        if raws:
            yield Stacks(tuple(self._symbolizer.resolve_all(raws)))

    def _new_stack(self, record: bytes) -> RawStack | None:
        raw = decode_stack(record)
        if raw is None:
            self._undecodable += 1
            return None
        if raw.key in self._known_stacks:
            return None
        self._known_stacks.add(raw.key, raw.process)
        if raw.lacks_table and self._tables is not None:
            self._tables.want(raw.process, raw.native)
        return raw

    def _replace(self, program: Replaced, rows: CallArray) -> Iterator[Event]:
        """A process executed another program: hand out the calls of the one before, and begin anew.

        One round after the report, for the same reason as with ends.
        """
        process = program.change.process
        before = rows[program.before(rows)]
        given_out = self._described.pop(process, None)
        if given_out != program.former and (given_out is not None or len(before)):
            yield TargetsEvent((TargetInfo(process, program.former),))
        if len(before):
            yield Calls(before)
        yield ProcessesEnded((process,))

    def _calls(self, rows: CallArray) -> Iterator[Event]:
        self._forget_lost_stacks(rows)
        described = self._describe(rows) + self._describe_former() + self._describe_again()
        if described:
            yield TargetsEvent(described)
        names = self._learn_names()
        if names.fresh:
            yield Names(names.fresh)
        # Calls made before a handle got another name keep the old one.
        for renamed in names.renamed:
            before = rows["start_ns"] < renamed.time_ns
            if before.any():
                yield Calls(rows[before])
                rows = rows[~before]
            yield Names((renamed,))
        for start in range(0, len(rows), _MAX_BATCH):
            yield Calls(rows[start : start + _MAX_BATCH])

    def _without_cupti(self, rows: CallArray) -> CallArray:
        """Calls of the driver. Those of CUPTI are for the GPU side alone, which alone has them probed."""
        if self._gpu is None:
            return rows
        is_cupti = rows["kind"] == wire.Kind.CUPTI
        if not is_cupti.any():
            return rows
        self._gpu.observe(rows[is_cupti])
        # As bytes: numpy copies records field by field, which takes thirty times as long.
        others: CallArray = rows.view(f"V{rows.itemsize}")[~is_cupti].view(wire.CALL)
        return others

    def _learn_names(self) -> LearnedNames:
        records = split_records(self._drain.data(_NAMES))
        names = [name for record in records if (name := decode_name(record)) is not None]
        self._undecodable += len(records) - len(names)
        return self._names.learn(names)

    def _describe(self, rows: CallArray) -> tuple[TargetInfo, ...]:
        """Descriptions of processes that call for the first time."""
        infos = []
        for tgid, start_ns in self._processes_seen.among(rows["tgid"], rows["process_start_ns"]):
            process = ProcessKey(tgid, start_ns)
            if process in self._described:
                continue
            fallback = (("process.pid", tgid), ("service.name", "unknown_service"))
            if self._gpu is not None:
                self._gpu.know(process)
            former = self._replaced.formers().get(process)
            self._described[process] = former or self._targets.attributes(tgid) or fallback
            infos.append(TargetInfo(process, self._described[process]))
        return tuple(infos)

    def _describe_former(self) -> tuple[TargetInfo, ...]:
        """Descriptions that were given out and may have been read too late, from the program that came next.

        At once: the window of those calls may close in this round.
        """
        infos = []
        for process, former in self._replaced.formers().items():
            if self._described.get(process, former) != former:
                self._described[process] = former
                infos.append(TargetInfo(process, former))
        return tuple(infos)

    def _describe_again(self) -> tuple[TargetInfo, ...]:
        """Descriptions that have changed since they were given out."""
        changed = self._targets.take_redescribed()
        # Their new description is given out with the first call of the new program.
        changed -= self._replaced.pids
        infos = []
        for process in [process for process in self._described if process.tgid in changed]:
            attributes = self._targets.attributes(process.tgid)
            if attributes is not None and attributes != self._described[process]:
                self._described[process] = attributes
                infos.append(TargetInfo(process, attributes))
        return tuple(infos)

    def _forget_lost_stacks(self, rows: CallArray) -> None:
        """Have BPF send again the stacks that calls refer to and that did not come."""
        pairs = self._stacks_seen.among(rows["stack_hash"][:, 0], rows["stack_hash"][:, 1])
        for key in self._known_stacks.unknown(StackKey(*pair) for pair in pairs):
            self._lost_stacks += 1
            self._kernel.forget_stack(key)

    def _let_go_of_stacks(self) -> Sequence[Event]:
        """Keep what is known bounded: a stack that is let go comes again with its next use."""
        keys = self._known_stacks.let_go()
        self._stacks_seen.forget(keys)
        for key in keys:
            self._kernel.forget_stack(key)
        return (StacksForgotten(keys),) if keys else ()

    def _forget(self, process: ProcessKey) -> None:
        self._symbolizer.forget(process)
        self._targets.forget(process.tgid)
        self._described.pop(process, None)
        self._names.forget(process)
        self._stacks_seen.forget(self._known_stacks.forget(process))
        self._processes_seen.forget([(process.tgid, process.start_ns)])
        if self._gpu is not None:
            self._gpu.forget(process)

    def _counters(self, *, force: bool) -> Sequence[Event]:
        now_ns = time.monotonic_ns()
        if not force and now_ns < self._counters_due_ns:
            return ()
        self._counters_due_ns = now_ns + _COUNTERS_EVERY_NS
        counts = self._kernel.counters()
        own = {
            ("record", "undecodable"): self._undecodable + self._drain.malformed(_CALLS),
            ("stack", "lost"): self._lost_stacks,
            ("library", "probed_late"): self._attachments.late_count,
            ("process", "unreadable"): self._targets.unreadable,
            ("target", "table_full"): self._targets.refused,
        }
        if self._device_counters is not None:
            own["device_metric", "unreadable"] = self._device_counters.failures
        counts += [LossCount(*name, count) for name, count in own.items() if count]
        counts += [
            LossCount("symbolize", name, count)
            for name, count in self._symbolizer.counters().items()
            if count
        ]
        if self._tables is not None:
            counts += self._tables.counters()
        if self._gpu is not None:
            counts += self._gpu.counters()
        if tuple(counts) == self._last_counters and not force:
            return ()
        self._last_counters = tuple(counts)
        return (SourceCounters(now_ns, self._last_counters),)


def _features(options: LiveOptions, proc: Path) -> set[Feature]:
    wanted = {
        Feature.CALLS: True,
        Feature.CPU: options.cpu,
        Feature.DRIVER: options.driver,
        # On other hosts nothing is missing.
        Feature.ERRORS: nvidia_is_loaded(proc),
    }
    return {feature for feature, is_wanted in wanted.items() if is_wanted}
