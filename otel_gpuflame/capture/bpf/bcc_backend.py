"""The capture programs loaded by way of BCC: for hosts without BTF (docs/decisions/0009-bcc-loader.md).

The same events as with libbpf, less what needs structures of the kernel: Python frames, spans, CPU samples, and
system calls on devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.backend import NOT_PERMITTED, LoadReport, RingSizes
from otel_gpuflame.capture.bpf.bcc_module import BccModule
from otel_gpuflame.capture.bpf.decode import RawXid
from otel_gpuflame.capture.bpf.detaching import detach_together
from otel_gpuflame.capture.bpf.libbpf import BpfMap, LibbpfError
from otel_gpuflame.capture.bpf.maps import CaptureMaps
from otel_gpuflame.capture.bpf.perf_events import open_tracepoint, open_uprobe
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.programs import OPTIONAL, Feature
from otel_gpuflame.capture.bpf.system_calls import (
    PROGRAM_TYPE_KPROBE,
    PROGRAM_TYPE_TRACEPOINT,
    link_perf_event,
    load_program,
)
from otel_gpuflame.capture.bpf.tracefs import tracepoint_fields, tracepoint_id
from otel_gpuflame.capture.bpf.uprobes import (
    ATTACH_TYPE_UPROBE_MULTI,
    UprobeLinks,
    multi_is_supported,
)
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events import wire
from otel_gpuflame.symbolize.start_time import start_monotonic_ns

_TRACEPOINTS: Final = {
    "on_switch": ("sched", "sched_switch"),
    "on_fork": ("task", "task_newtask"),
    "on_exec": ("sched", "sched_process_exec"),
    "on_exit": ("sched", "sched_process_exit"),
    "on_mmap_enter": ("syscalls", "sys_enter_mmap"),
    "on_mmap_exit": ("syscalls", "sys_exit_mmap"),
}
# What the C source calls the offset of a tracepoint's field.
_OFFSETS: Final = {
    "OGF_PREV_STATE_AT": ("sched", "sched_switch", "prev_state"),
    "OGF_CHILD_PID_AT": ("task", "task_newtask", "pid"),
    "OGF_CLONE_FLAGS_AT": ("task", "task_newtask", "clone_flags"),
}
_PAGE_BYTES: Final = 4096
_PROBES: Final = [p for p in Program if p not in (Program.BACKWARD, Program.NODE)]


class BccKernel(CaptureMaps):
    """Owns the compiled programs, their maps and links. Raises SourceUnavailable when capture is impossible here."""

    gpu_majors: None = None
    passes_since: None = None
    waits_since: None = None
    unwind_maps: None = None

    def __init__(
        self, rings: RingSizes | None = None, features: Collection[Feature] = (Feature.CALLS,)
    ) -> None:
        rings = rings or RingSizes()
        self._module = BccModule({**_ring_pages(rings), **_field_offsets()})
        self._object = _BccObject(self._module)
        try:
            multi = self._object.load()
            for program, tracepoint in _TRACEPOINTS.items():
                self._object.attach_tracepoint(program, *tracepoint)
        except LibbpfError as error:
            self._object.close()
            raise _refusal(error) from error
        super().__init__(self._module.map_fd, rings)
        self.targets: BpfMap = _TargetsWithStart(self._library, self._module.map_fd)
        self.uprobes = UprobeLinks(self._object, multi=multi)
        self.report = LoadReport(
            f"bcc {self._module.version}", uprobe_multi=multi, missing=_missing(features)
        )

    def watch_host(self) -> None:
        """Not possible: raises SourceUnavailable."""
        raise SourceUnavailable(
            "--loader bcc captures named processes only: use --loader libbpf, which needs a kernel with BTF"
        )

    def take_xids(self) -> list[RawXid]:
        """None: these programs do not ask the tracepoint."""
        return []

    def detach(self) -> None:
        """Detach everything; maps and rings stay."""
        self.uprobes.detach_all()
        self._object.detach()

    def close(self) -> None:
        """Detach everything and free the rest. Safe to call twice."""
        self.uprobes.detach_all()
        self._object.close()


class _BccObject:
    """Programs of a module in the kernel, and what they are attached to."""

    def __init__(self, module: BccModule) -> None:
        self._module = module
        self._programs: dict[str, int] = {}
        self._links: list[int] = []
        self._is_open = True

    def load(self) -> bool:
        """Load everything; whether uprobes attach many at a time. Raises LibbpfError."""
        for name in _TRACEPOINTS:
            self._load(name, PROGRAM_TYPE_TRACEPOINT, 0)
        self._load_probes(ATTACH_TYPE_UPROBE_MULTI)
        if multi_is_supported(self._programs[Program.CALL.value]):
            return True
        self._load_probes(0)
        return False

    def program_fd(self, name: str) -> int:
        """Descriptor of a loaded program."""
        return self._programs[name]

    def attach_uprobe(
        self, name: str, path: Path, offset: int, *, cookie: int, is_return: bool
    ) -> Callable[[], None]:
        """One uprobe at a file offset, for every process; returns what detaches it."""
        event = open_uprobe(path, offset, is_return=is_return)
        return partial(self._unlink, self._link(name, event, cookie))

    def attach_tracepoint(self, name: str, category: str, tracepoint: str) -> None:
        """Run a program at a tracepoint. Raises LibbpfError."""
        number = tracepoint_id(category, tracepoint)
        if number is None:
            raise LibbpfError(errno.ENOENT, f"find tracepoint {category}:{tracepoint}")
        self._link(name, open_tracepoint(number), 0)

    def detach(self) -> None:
        """Let go of every link."""
        detach_together([partial(self._unlink, link) for link in self._links])

    def close(self) -> None:
        """Detach and free. Safe to call twice."""
        self.detach()
        while self._programs:
            os.close(self._programs.popitem()[1])
        if self._is_open:
            self._is_open = False
            self._module.close()

    def _load_probes(self, attach_type: int) -> None:
        for program in _PROBES:
            self._load(program.value, PROGRAM_TYPE_KPROBE, attach_type)

    def _load(self, name: str, type_: int, attach_type: int) -> None:
        code = self._module.instructions(name)
        fd = load_program(name, type_, code, attach_type=attach_type)
        before = self._programs.pop(name, None)
        if before is not None:
            os.close(before)
        self._programs[name] = fd

    def _link(self, name: str, event_fd: int, cookie: int) -> int:
        """The link holds the event: its descriptor is closed in any case."""
        try:
            link = link_perf_event(self._programs[name], event_fd, cookie)
        finally:
            os.close(event_fd)
        self._links.append(link)
        return link

    def _unlink(self, link: int) -> None:
        with contextlib.suppress(ValueError):
            self._links.remove(link)
            os.close(link)


class _TargetsWithStart(BpfMap):
    """BPF cannot read here when a process started, so it is told when the process is named."""

    def __init__(self, library: ctypes.CDLL, map_fd: Callable[[str], int]) -> None:
        super().__init__(library, map_fd("targets"), value_size=wire.TARGET.itemsize)
        self._starts = BpfMap(library, map_fd("process_starts"), value_size=8)

    def set(self, key: bytes, value: bytes, *, must_exist: bool = False) -> bool:
        """See `BpfMap.set`. The start comes first: no event may lack it."""
        if not must_exist:
            started_ns = start_monotonic_ns(int.from_bytes(key, "little")) or 0
            self._starts.set(key, started_ns.to_bytes(8, "little"))
        return super().set(key, value, must_exist=must_exist)


def _missing(features: Collection[Feature]) -> dict[str, str]:
    wanted = [p for p in OPTIONAL if p.feature in features and p.feature is not Feature.CALLS]
    return {
        "--loader bcc": "no Python frames and no spans",
        **{program.name: program.consequence for program in wanted},
    }


def _ring_pages(rings: RingSizes) -> dict[str, int]:
    names = ("calls", "stacks", "names", "processes")
    return {f"OGF_{name.upper()}_PAGES": getattr(rings, name) // _PAGE_BYTES for name in names}


def _field_offsets() -> dict[str, int]:
    offsets = {}
    for name, (category, tracepoint, field) in _OFFSETS.items():
        offset = tracepoint_fields(category, tracepoint).get(field)
        if offset is None:
            raise SourceUnavailable(
                f"--loader bcc needs the format of tracepoint {category}:{tracepoint}: "
                "mount -t tracefs tracefs /sys/kernel/tracing, or run as root"
            )
        offsets[name] = offset
    return offsets


def _refusal(error: LibbpfError) -> SourceUnavailable:
    if error.errno == errno.EPERM:
        return SourceUnavailable(NOT_PERMITTED)
    return SourceUnavailable(
        f"the kernel ({os.uname().release}) refuses the programs that BCC compiled: {error}. "
        "Kernel 5.15 or newer is needed."
    )
