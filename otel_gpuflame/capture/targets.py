"""The processes being captured: what BPF must know of each, kept up to date while they fork, exec and load code."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.backend import CaptureBackend
from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.describe import Attributes, describe, publishes_itself
from otel_gpuflame.capture.libraries import FileKey, is_gpu_library
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events import wire
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, PythonRuntime, find_python
from otel_gpuflame.symbolize.elf_files import ElfFiles, open_mapped_file
from otel_gpuflame.symbolize.maps import read_maps
from otel_gpuflame.symbolize.thread_context import find_thread_context

logger = logging.getLogger(__name__)

# A library is relocated some time after it was mapped, and the last one announces itself by no further mapping:
# look again this long after each change. The last looks are for descriptions: OpenTelemetry is often set up late.
_LOOK_AGAIN_NS: Final = (0, 20_000_000, 200_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000)
_LOOKS_FOR_DESCRIPTION: Final = 3
"""So many of the last looks; the first ones come often while a program loads its libraries."""
_NO_OWNER: Final = 255


@dataclass(slots=True)
class Target:
    """What we know of one process."""

    pid: int
    attributes: Attributes | None = None
    comm: str = ""
    """The kernel's name of the process: what it is called if it ends before it could be described."""
    is_forked: bool = False
    """It runs the program of its parent, and is described like it until it publishes something of its own."""
    layout: bytes = b""
    """Value in BPF's `targets` map as last written."""
    due_ns: list[int] = field(default_factory=list)
    has_ended: bool = False
    libraries: set[FileKey] = field(default_factory=set)


class Targets:
    """Keeps BPF's `targets` map and the uprobes in step with the processes."""

    def __init__(
        self,
        kernel: CaptureBackend,
        attachments: Attachments,
        *,
        host_wide: bool = False,
        proc: Path = Path("/proc"),
    ) -> None:
        self._kernel = kernel
        self._attachments = attachments
        self._host_wide = host_wide
        self._proc = proc
        self._targets: dict[int, Target] = {}
        self._files = ElfFiles()
        self._redescribed: set[int] = set()

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, pid: int, now_ns: int) -> None:
        """Capture a process from now on, unless it is ourselves. Raises TargetError if there is no such process."""
        if pid == os.getpid():
            return
        try:
            status = (self._proc / str(pid) / "status").read_text()
        except OSError:
            raise TargetError(
                f"no process {pid}: check the pid, and that it is one of this host"
            ) from None
        # Threads have their directory in /proc too, but BPF tells processes apart, not threads.
        process = int(status.partition("\nTgid:")[2].split(maxsplit=1)[0])
        if process != pid:
            raise TargetError(f"{pid} is a thread of process {process}: record that one")
        self._targets[pid] = Target(pid, due_ns=[now_ns + delay for delay in _LOOK_AGAIN_NS])
        if not self._kernel.targets.set(_key(pid), np.zeros(1, wire.TARGET).tobytes()):
            logger.warning(
                "more processes than the targets map holds: process %d is not captured", pid
            )

    def descendants(self, pid: int) -> Iterator[int]:
        """The process and all its present descendants."""
        yield pid
        for children in (self._proc / str(pid) / "task").glob("*/children"):
            try:
                text = children.read_text()
            except OSError:
                continue
            for child in text.split():
                yield from self.descendants(int(child))

    def apply(self, change: ProcessChange, now_ns: int) -> None:
        """Follow a change that BPF reported."""
        pid = change.process.tgid
        if change.change is wire.ProcessChange.EXIT:
            if pid in self._targets:
                self._targets[pid].has_ended = True
            return
        known = self._targets.get(pid)
        if known is not None and known.has_ended:
            # Its last calls are not through yet, and the pid already means another process.
            del self._targets[pid]
        if change.change is wire.ProcessChange.FORK:
            parent = self._targets.get(change.parent.tgid)
            self._targets[pid] = Target(
                pid,
                attributes=_with_pid(parent.attributes, pid) if parent else None,
                is_forked=True,
            )
        target = self._targets.setdefault(pid, Target(pid))
        target.comm = change.comm
        if change.change is wire.ProcessChange.EXEC:
            target.layout = b""
            target.libraries.clear()
            target.attributes = None
            target.is_forked = False
        target.due_ns = [now_ns + delay for delay in _LOOK_AGAIN_NS]
        if target.attributes is None:
            # At once: it may live for milliseconds only, and stacks to be resolved come before the next look.
            self._describe(target)

    def forget(self, pid: int) -> None:
        """Drop a process that has ended, unless its pid already means another one."""
        target = self._targets.get(pid)
        if target is not None and target.has_ended:
            del self._targets[pid]

    def look(self, now_ns: int) -> None:
        """Look again at every process whose time has come."""
        for target in tuple(self._targets.values()):
            if target.due_ns and target.due_ns[0] <= now_ns:
                target.due_ns = [due for due in target.due_ns if due > now_ns]
                self._look_at(target, now_ns)

    def scan(self, now_ns: int) -> None:
        """Find the processes of the host that map a GPU library already."""
        pids = {int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()}
        for pid in pids - {os.getpid()} - self._targets.keys():
            if self._maps_gpu_library(pid):
                self._targets[pid] = Target(
                    pid, due_ns=[now_ns + delay for delay in _LOOK_AGAIN_NS]
                )
                self._kernel.targets.set(_key(pid), np.zeros(1, wire.TARGET).tobytes())
                self._kernel.costs.set(_key(pid), np.zeros(1, wire.COST).tobytes())
                if not self._maps_gpu_library(pid):
                    # It ended in between: BPF will not tell, and the pid may soon mean another process.
                    del self._targets[pid]
                    self._kernel.targets.delete(_key(pid))
                    self._kernel.costs.delete(_key(pid))

    def keep_libraries(self, now_ns: int) -> None:
        """Say which libraries are still in use, and let go of the others."""
        for target in self._targets.values():
            if not target.has_ended:
                self._attachments.used(target.libraries, now_ns)
        self._attachments.let_go_of_unused(now_ns)

    def pids(self) -> list[int]:
        """Targets that live."""
        return [pid for pid, target in self._targets.items() if not target.has_ended]

    def look_again_if_unnotified(self, now_ns: int) -> None:
        """Where the kernel does not report new mappings, every process is due."""
        if "on_mmap_exit" in self._kernel.report.missing:
            if self._host_wide:
                self.scan(now_ns)
            for target in self._targets.values():
                target.due_ns = target.due_ns or [now_ns]

    def attributes(self, pid: int) -> Attributes | None:
        """Resource attributes of a target: from now if it lives, else from when it was last seen.

        A process that ended before anybody looked has the name that the kernel gave it, and no other.
        """
        target = self._targets.get(pid)
        if target is None:
            return describe(pid, self._proc)
        self._describe(target)
        if target.attributes is None and target.comm:
            return (("process.pid", pid), ("service.name", target.comm))
        return target.attributes

    def service_name(self, pid: int) -> str:
        """The service of a target as described last; reads nothing."""
        target = self._targets.get(pid)
        if target is None:
            return "unknown_service"
        return str(
            dict(target.attributes or ()).get("service.name", target.comm or "unknown_service")
        )

    def take_redescribed(self) -> set[int]:
        """Processes whose attributes have changed since the last call."""
        changed, self._redescribed = self._redescribed, set()
        return changed

    def _look_at(self, target: Target, now_ns: int) -> None:
        address_map = read_maps(target.pid, self._proc)
        if address_map is None:
            if not target.due_ns:
                # Long gone: the report of its end was lost.
                self._targets.pop(target.pid, None)
            return
        if target.attributes is None or len(target.due_ns) < _LOOKS_FOR_DESCRIPTION:
            self._describe(target)
        libraries = {m.file_identity: m for m in address_map.mappings if is_gpu_library(m.path)}
        for mapping in libraries.values():
            # The mapped inode itself: a driver update replaces the file under running programs, and a path inside a
            # target's root may lead out of it through a link.
            fd = open_mapped_file(target.pid, mapping, self._proc)
            if fd is None:
                continue
            key = self._attachments.attach(Path(f"/proc/self/fd/{fd}"), now_ns, shown=mapping.path)
            os.close(fd)
            if key is not None:
                target.libraries.add(key)
        self._update_layout(target)

    def _maps_gpu_library(self, pid: int) -> bool:
        address_map = read_maps(pid, self._proc)
        return address_map is not None and any(
            is_gpu_library(mapping.path) for mapping in address_map.mappings
        )

    def _describe(self, target: Target) -> None:
        """Once more: a process may publish its resource at any time."""
        is_inherited = target.is_forked and target.attributes is not None
        if target.has_ended or (is_inherited and not publishes_itself(target.pid, self._proc)):
            return
        attributes = describe(target.pid, self._proc)
        if attributes is None or attributes == target.attributes:
            return
        target.attributes = attributes
        self._redescribed.add(target.pid)

    def _update_layout(self, target: Target) -> None:
        value = np.zeros(1, wire.TARGET)
        layout = value["python"]
        layout["skip_owner"] = _NO_OWNER
        python = find_python(target.pid, self._proc, self._files)
        if isinstance(python, PythonRefusal):
            layout["unsupported"] = 1
        elif isinstance(python, PythonRuntime):
            for name in wire.PYTHON_LAYOUT.names or ():
                if name != "_pad":
                    layout[name] = getattr(python.layout, name)
        value["span_tls_offset"] = find_thread_context(target.pid, self._proc, self._files) or 0
        if value.tobytes() != target.layout:
            # BPF removes a process that ends. Its pid must not come back: it may soon mean another one.
            self._kernel.targets.set(_key(target.pid), value.tobytes(), must_exist=True)
            target.layout = value.tobytes()


def _key(pid: int) -> bytes:
    return pid.to_bytes(4, "little")


def _with_pid(attributes: Attributes | None, pid: int) -> Attributes | None:
    if attributes is None:
        return None
    return tuple((key, pid if key == "process.pid" else value) for key, value in attributes)
