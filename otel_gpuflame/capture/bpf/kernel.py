"""The loaded capture object: programs the kernel accepted, maps, and what had to be left out."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.backend import NOT_PERMITTED, LoadReport, RingSizes
from otel_gpuflame.capture.bpf.decode import RawXid, decode_xid
from otel_gpuflame.capture.bpf.detaching import detach_together
from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError
from otel_gpuflame.capture.bpf.library import choose_library
from otel_gpuflame.capture.bpf.maps import CaptureMaps
from otel_gpuflame.capture.bpf.perf_events import open_cpu_sampler, open_tracepoint
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.programs import (
    CPU_SAMPLER,
    OPTIONAL,
    Feature,
    OptionalProgram,
    Tracepoint,
)
from otel_gpuflame.capture.bpf.tracefs import tracepoint_fields, tracepoint_id
from otel_gpuflame.capture.bpf.unwind_maps import UnwindMaps
from otel_gpuflame.capture.bpf.uprobes import (
    ATTACH_TYPE_UPROBE_MULTI,
    UprobeLinks,
    multi_is_supported,
)
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.events.records import LossCount

OBJECT: Final = Path(__file__).parents[2] / "_artifacts" / "capture.bpf.o"
_MAX_XIDS: Final = 256
_OFFSET_BITS: Final = 16
_MAX_OFFSET: Final = (1 << _OFFSET_BITS) - 1
WALK_MEMORY: Final = "OTEL_GPUFLAME_WALK_MEMORY"
"""Variable: `off`, native stacks are walked each time; `check`, those that are remembered too, differences counted."""
_WALK_MEMORY: Final = {"": 0, "check": 1, "off": 2}
UNWIND_TABLES: Final = "unwind_tables"
"""Among what the kernel may refuse (`LoadReport.missing`)."""
_ONLINE_CPUS: Final = Path("/sys/devices/system/cpu/online")


class CaptureKernel(CaptureMaps):
    """Owns the BPF object, its maps and links. Raises SourceUnavailable when capture is impossible here."""

    def __init__(
        self, rings: RingSizes | None = None, features: Collection[Feature] = (Feature.CALLS,)
    ) -> None:
        self._features = features
        self._walk_memory = chosen_walk_memory()
        self._libbpf = choose_library()
        self._image = _read_object()
        self.rings = rings or RingSizes()
        self.object, self.report = self._load()
        try:
            self._attach_optional()
        except LibbpfError:
            self.object.close()
            raise
        super().__init__(self.object.map_fd, self.rings)
        self.uprobes = UprobeLinks(self.object, multi=self.report.uprobe_multi)
        self.gpu_majors = self.map("gpu_majors", 4)
        self.passes_since = self.map("passes_since", 8)
        self.waits_since = self.map("waits_since", 8)
        self._xids = self.map("xids", wire.XID.itemsize)
        self._walk_counters = self.per_cpu("walk_counters")
        uses_tables = UNWIND_TABLES not in self.report.missing
        self.unwind_maps = UnwindMaps(self._library, self.object.map_fd) if uses_tables else None

    def take_xids(self) -> list[RawXid]:
        """See `CaptureBackend.take_xids`."""
        taken: list[RawXid] = []
        # Bounded: a device that fails faster than we read must not keep us here.
        while len(taken) < _MAX_XIDS and (record := self._xids.pop()) is not None:
            taken.append(decode_xid(record))
        return taken

    def counters(self) -> list[LossCount]:
        """See `CaptureBackend.counters`. Those of `walk` are native walks of processes with unwind tables."""
        walks = [
            LossCount("walk", outcome.name.lower(), total)
            for outcome in wire.WalkOutcome
            if (total := self._walk_counters.total(outcome))
        ]
        return super().counters() + walks

    def detach(self) -> None:
        """Detach everything; maps and rings stay."""
        if self.report.uprobe_multi:
            detach_together([self.uprobes.detach_all, self.object.detach])
            return
        # Single uprobes are links of the object too: entries must go before returns.
        self.uprobes.detach_all()
        self.object.detach()

    def close(self) -> None:
        """Detach everything and free the object."""
        self.uprobes.detach_all()
        self.object.close()

    def _load(self) -> tuple[BpfObject, LoadReport]:
        """Load with uprobe_multi where the kernel has it, else with single uprobes."""
        version = f"libbpf {self._libbpf.version} ({self._libbpf.origin})"
        report = LoadReport(version, uprobe_multi=True)
        bpf_object = self._try_load(report)
        if multi_is_supported(bpf_object.program_fd(Program.CALL.value)):
            return bpf_object, report
        bpf_object.close()
        report.uprobe_multi = False
        return self._try_load(report), report

    def _try_load(self, report: LoadReport) -> BpfObject:
        """Load the wanted programs; where the kernel refuses the whole, without what it refuses."""
        optional = self._optional()
        for tables in (True, False):
            self._set_tables(report, used=tables)
            try:
                return self._loaded(optional, report)
            except LibbpfError as error:
                # The verifier says EACCES too; EPERM also befalls root, where a container took its capabilities.
                if error.errno == errno.EPERM or (error.errno == errno.EACCES and os.geteuid()):
                    raise SourceUnavailable(NOT_PERMITTED) from error
        # Not because of the tables alone.
        self._set_tables(report, used=True)
        try:
            return self._load_accepted(report)
        except LibbpfError:
            self._set_tables(report, used=False)
        try:
            return self._load_accepted(report)
        except LibbpfError as error:
            raise SourceUnavailable(
                f"the kernel ({os.uname().release}) refuses the BPF programs: {error}. "
                "Kernel 5.15 or newer with BTF (/sys/kernel/btf/vmlinux) and BPF enabled is needed; "
                "`otel-gpuflame doctor` names what is missing."
            ) from error

    def _load_accepted(self, report: LoadReport) -> BpfObject:
        """Load without the optional programs that the kernel refuses. Raises LibbpfError."""
        optional = self._optional()
        accepted = [each for each in optional if self._is_accepted(each, report)]
        bpf_object = self._loaded(accepted, report)
        report.missing.update((p.name, p.consequence) for p in optional if p not in accepted)
        return bpf_object

    @staticmethod
    def _set_tables(report: LoadReport, *, used: bool) -> None:
        """Whether stacks are walked by unwind tables."""
        report.missing.pop(UNWIND_TABLES, None)
        if not used:
            report.missing[UNWIND_TABLES] = (
                "native stacks by frame pointers only: cut in code that is built without them"
            )

    def _optional(self) -> list[OptionalProgram]:
        return [program for program in OPTIONAL if program.feature in self._features]

    def _is_accepted(self, program: OptionalProgram, report: LoadReport) -> bool:
        """Whether the kernel loads this optional program, none of the others being there."""
        try:
            self._loaded([program], report).close()
        except LibbpfError:
            return False
        return True

    def _loaded(self, optional: Collection[OptionalProgram], report: LoadReport) -> BpfObject:
        """The object with these optional programs, in the kernel. Raises LibbpfError."""
        bpf_object = self._configured(optional, report)
        try:
            bpf_object.load()
        except LibbpfError:
            bpf_object.close()
            raise
        return bpf_object

    def _configured(self, optional: Collection[OptionalProgram], report: LoadReport) -> BpfObject:
        bpf_object = BpfObject(self._libbpf.functions, self._image)
        for program in OPTIONAL:
            bpf_object.set_autoload(program.name, load=program in optional)
        if report.uprobe_multi:
            for probe in Program:
                bpf_object.set_attach_type(probe.value, ATTACH_TYPE_UPROBE_MULTI)
        for name in ("calls", "stacks", "names", "processes"):
            bpf_object.set_map_size(name, getattr(self.rings, name))
        if UNWIND_TABLES in report.missing:
            bpf_object.set_constants(".rodata.unwind", bytes(4))
        if self._walk_memory:
            bpf_object.set_constants(".rodata.walk", self._walk_memory.to_bytes(4, "little"))
        return bpf_object

    def _attach_optional(self) -> None:
        for program in self._optional():
            if program.name in self.report.missing:
                continue
            try:
                self._attach(program)
            except LibbpfError:
                self.report.missing[program.name] = program.consequence

    def _attach(self, program: OptionalProgram) -> None:
        if program.name == CPU_SAMPLER:
            for cpu in online_cpus():
                event = open_cpu_sampler(cpu, CPU_SAMPLES_HZ)
                self.object.attach_perf_event(program.name, event)
        elif not program.tracepoints:
            self.object.attach(program.name)
        else:
            self._attach_tracepoints(program)

    def _attach_tracepoints(self, program: OptionalProgram) -> None:
        found = 0
        for tracepoint in program.tracepoints:
            number, cookie = (
                tracepoint_id(tracepoint.category, tracepoint.name),
                cookie_of(tracepoint),
            )
            # Not every architecture has every call: arm64 has ppoll, and no poll.
            if number is not None and cookie is not None:
                event = open_tracepoint(number)
                self.object.attach_perf_event(program.name, event, cookie=cookie)
                found += 1
        if not found:
            raise LibbpfError(errno.ENOENT, f"find tracepoints of {program.name}")


def chosen_walk_memory() -> int:
    """What WALK_MEMORY asks for, as BPF has it. Raises SourceUnavailable for anything else."""
    wanted = os.environ.get(WALK_MEMORY, "")
    if wanted not in _WALK_MEMORY:
        raise SourceUnavailable(f"{WALK_MEMORY} is {wanted!r}: neither 'off' nor 'check'")
    return _WALK_MEMORY[wanted]


def cookie_of(tracepoint: Tracepoint) -> int | None:
    """Its cookie; None where this kernel's record lacks one of its fields, or has it beyond 16 bits."""
    if not tracepoint.fields:
        return tracepoint.cookie
    offsets = tracepoint_fields(tracepoint.category, tracepoint.name)
    cookie = 0
    for place, name in enumerate(tracepoint.fields):
        offset = offsets.get(name)
        if offset is None or offset > _MAX_OFFSET:
            return None
        cookie |= offset << _OFFSET_BITS * place
    return cookie


def online_cpus() -> list[int]:
    """Numbers of the CPUs that run at present."""
    cpus: list[int] = []
    for part in _ONLINE_CPUS.read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _read_object() -> bytes:
    try:
        return OBJECT.read_bytes()
    except OSError as error:
        raise SourceUnavailable(
            f"the BPF object is missing ({error}). The package was built without it: run `make bpf`, "
            "or reinstall it on a machine with clang, llvm and libbpf-dev."
        ) from error
