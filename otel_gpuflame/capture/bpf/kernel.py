"""The loaded capture object: programs the kernel accepted, maps, and what had to be left out."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.drain import Drain, Ring
from otel_gpuflame.capture.bpf.libbpf import BpfMap, BpfObject, LibbpfError, load_library
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.tracefs import tracepoint_id
from otel_gpuflame.capture.bpf.uprobes import (
    ATTACH_TYPE_UPROBE_MULTI,
    UprobeLinks,
    multi_is_supported,
)
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import LossCount

OBJECT: Final = Path(__file__).parents[2] / "_artifacts" / "capture.bpf.o"
MIB: Final = 1 << 20
_OUTCOMES: Final = 8
_KINDS: Final = 16

# What is lost when the kernel refuses a program.
_OPTIONAL: Final = {
    "on_fork": "children of recorded processes are not followed",
    "on_exec": "recorded processes that execute another program lose their Python frames and span",
    "on_exit": "calls cut short by the end of a thread are counted as pending",
    "on_mmap_enter": "libraries loaded later are found by scanning once a second",
    "on_mmap_exit": "libraries loaded later are found by scanning once a second",
}

_SYSCALL_TRACEPOINTS: Final = {"on_mmap_enter": "sys_enter_mmap", "on_mmap_exit": "sys_exit_mmap"}


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Bytes of each BPF ring, powers of two. 16 MiB of calls are 110,000 calls."""

    calls: int = 16 * MIB
    stacks: int = 8 * MIB
    names: int = 1 * MIB
    processes: int = 1 * MIB


@dataclass(slots=True)
class LoadReport:
    """What the host gave us."""

    libbpf: str
    uprobe_multi: bool
    missing: dict[str, str] = field(default_factory=dict)
    """Program → what does not work without it."""


class CaptureKernel:
    """Owns the BPF object, its maps and links. Raises SourceUnavailable when capture is impossible here."""

    def __init__(self, rings: RingSizes | None = None) -> None:
        self._library = load_library()
        self._image = _read_object()
        self.rings = rings or RingSizes()
        self.object, self.report = self._load()
        try:
            self._attach_tracepoints()
        except LibbpfError:
            self.object.close()
            raise
        self.uprobes = UprobeLinks(self.object, multi=self.report.uprobe_multi)
        self.targets = self._map("targets", wire.TARGET.itemsize)
        self._seen_stacks = self._map("seen_stacks", 1)
        self._cpus = int(self._library.libbpf_num_possible_cpus())
        self._counters = self._map("counters", 8 * self._cpus)

    def open_drain(self) -> Drain:
        """The drain of all rings, in the order CALLS, STACKS, NAMES, PROCESSES."""
        sizes = self.rings
        return Drain(
            [
                Ring(self.object.map_fd("calls"), sizes.calls, wire.CALL.itemsize, 256 * MIB),
                Ring(self.object.map_fd("stacks"), sizes.stacks, 0, 128 * MIB),
                Ring(self.object.map_fd("names"), sizes.names, 0, 32 * MIB),
                Ring(self.object.map_fd("processes"), sizes.processes, 0, 32 * MIB),
            ]
        )

    def forget_stack(self, key: StackKey) -> None:
        """Make BPF send a stack again, because it got lost on the way."""
        self._seen_stacks.delete(np.array(key, "<u8").tobytes())

    def counters(self) -> list[LossCount]:
        """All nonzero counters, summed over CPUs."""
        counts = []
        for kind in wire.Kind:
            for outcome in wire.Outcome:
                raw = self._counters.get((kind * _OUTCOMES + outcome).to_bytes(4, "little"))
                total = int(np.frombuffer(raw, "<u8").sum()) if raw else 0
                if total:
                    counts.append(LossCount(kind.name.lower(), outcome.name.lower(), total))
        return counts

    def close(self) -> None:
        """Detach everything and free the object."""
        self.uprobes.detach()
        self.object.close()

    def _load(self) -> tuple[BpfObject, LoadReport]:
        """Load with uprobe_multi where the kernel has it, else with single uprobes."""
        version = self._library.libbpf_version_string().decode()
        report = LoadReport(version, uprobe_multi=True)
        bpf_object = self._try_load(report)
        if multi_is_supported(bpf_object.program_fd(Program.CALL.value)):
            return bpf_object, report
        bpf_object.close()
        report.uprobe_multi = False
        return self._try_load(report), report

    def _try_load(self, report: LoadReport) -> BpfObject:
        """Load all programs; leave out optional ones one by one when the kernel refuses the whole."""
        for left_out in ((), *((name,) for name in _OPTIONAL), tuple(_OPTIONAL)):
            bpf_object = self._configured(left_out, multi=report.uprobe_multi)
            try:
                bpf_object.load()
            except LibbpfError as error:
                bpf_object.close()
                # The verifier says EACCES too; EPERM also befalls root, where a container took its capabilities.
                if error.errno == errno.EPERM or (error.errno == errno.EACCES and os.geteuid()):
                    raise SourceUnavailable(
                        "loading BPF programs is not permitted: run as root, or give the process "
                        "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE; root in a container needs them too"
                    ) from error
                last = error
            else:
                report.missing.update((name, _OPTIONAL[name]) for name in left_out)
                return bpf_object
        raise SourceUnavailable(
            f"the kernel ({os.uname().release}) refuses the BPF programs: {last}. "
            "Kernel 5.15 or newer with BTF (/sys/kernel/btf/vmlinux) and BPF enabled is needed; "
            "`otel-gpuflame doctor` names what is missing."
        )

    def _configured(self, left_out: tuple[str, ...], *, multi: bool) -> BpfObject:
        bpf_object = BpfObject(self._library, self._image)
        for name in left_out:
            bpf_object.set_autoload(name, load=False)
        if multi:
            for program in Program:
                bpf_object.set_attach_type(program.value, ATTACH_TYPE_UPROBE_MULTI)
        for name in ("calls", "stacks", "names", "processes"):
            bpf_object.set_map_size(name, getattr(self.rings, name))
        return bpf_object

    def _attach_tracepoints(self) -> None:
        for name, consequence in _OPTIONAL.items():
            if name in self.report.missing:
                continue
            try:
                self._attach_tracepoint(name)
            except LibbpfError:
                self.report.missing[name] = consequence

    def _attach_tracepoint(self, name: str) -> None:
        if name not in _SYSCALL_TRACEPOINTS:
            self.object.attach(name)
            return
        number = tracepoint_id("syscalls", _SYSCALL_TRACEPOINTS[name])
        if number is None:
            raise LibbpfError(errno.ENOENT, f"find tracepoint {_SYSCALL_TRACEPOINTS[name]}")
        self.object.attach_tracepoint(name, number)

    def _map(self, name: str, value_size: int) -> BpfMap:
        return BpfMap(self._library, self.object.map_fd(name), value_size=value_size)


def _read_object() -> bytes:
    try:
        return OBJECT.read_bytes()
    except OSError as error:
        raise SourceUnavailable(
            f"the BPF object is missing ({error}). The package was built without it: run `make bpf`, "
            "or reinstall it on a machine with clang, llvm and libbpf-dev."
        ) from error
