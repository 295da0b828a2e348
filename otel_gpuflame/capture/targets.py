"""The processes being captured: what BPF must know of each, kept up to date while they fork, exec and load code."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.describe import Attributes, describe
from otel_gpuflame.capture.libraries import FileKey, GpuLibrary, is_gpu_library, read_library
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events import wire
from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, PythonRuntime, find_python
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.maps import read_maps
from otel_gpuflame.symbolize.thread_context import find_thread_context

logger = logging.getLogger(__name__)

# A library is relocated some time after it was mapped, and the last one announces itself by no further mapping:
# look again this long after each change.
_LOOK_AGAIN_NS: Final = (0, 20_000_000, 200_000_000, 1_000_000_000)
_NO_OWNER: Final = 255


@dataclass(slots=True)
class Target:
    """What we know of one process."""

    pid: int
    attributes: Attributes | None = None
    layout: bytes = b""
    """Value in BPF's `targets` map as last written."""
    due_ns: list[int] = field(default_factory=list)
    has_ended: bool = False


class Targets:
    """Keeps BPF's `targets` map and the uprobes in step with the processes."""

    def __init__(self, kernel: CaptureKernel, proc: Path = Path("/proc")) -> None:
        self._kernel = kernel
        self._proc = proc
        self._targets: dict[int, Target] = {}
        self._attached: dict[FileKey, GpuLibrary] = {}
        self._unusable: set[FileKey] = set()
        self._files = ElfFiles()
        self.attach_errors: list[str] = []

    @property
    def libraries(self) -> tuple[GpuLibrary, ...]:
        """Libraries with probes attached."""
        return tuple(self._attached.values())

    def add(self, pid: int, now_ns: int) -> None:
        """Capture a process from now on. Raises TargetError if there is no such process."""
        if not (self._proc / str(pid)).is_dir():
            raise TargetError(f"no process {pid}: check the pid, and that it is one of this host")
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

    def attach_library(self, path: Path) -> bool:
        """Attach probes to a library file, once. False if it is none of ours or the kernel refuses."""
        try:
            status = path.stat()
        except OSError:
            return False
        key = FileKey(status.st_dev, status.st_ino)
        if key in self._attached:
            return True
        if key in self._unusable:
            return False
        library = read_library(path)
        if library is None:
            self._unusable.add(key)
            return False
        try:
            self._kernel.uprobes.attach(path, library.points)
        except LibbpfError as error:
            self._unusable.add(key)
            self.attach_errors.append(str(error))
            logger.warning("cannot probe %s: %s", path, error)
            return False
        self._attached[key] = library
        logger.info("%d probes on %s", len(library.points), path)
        return True

    def apply(self, change: ProcessChange, now_ns: int) -> None:
        """Follow a change that BPF reported."""
        pid = change.process.tgid
        if change.change is wire.ProcessChange.EXIT:
            if pid in self._targets:
                self._targets[pid].has_ended = True
            return
        if change.change is wire.ProcessChange.FORK:
            parent = self._targets.get(change.parent.tgid)
            self._targets[pid] = Target(
                pid, attributes=_with_pid(parent.attributes, pid) if parent else None
            )
        target = self._targets.setdefault(pid, Target(pid))
        if change.change is wire.ProcessChange.EXEC:
            target.layout = b""
            target.attributes = None
        target.due_ns = [now_ns + delay for delay in _LOOK_AGAIN_NS]

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
                self._look_at(target)

    def look_again_if_unnotified(self, now_ns: int) -> None:
        """Where the kernel does not report new mappings, every process is due."""
        if "on_mmap_exit" in self._kernel.report.missing:
            for target in self._targets.values():
                target.due_ns = target.due_ns or [now_ns]

    def attributes(self, pid: int) -> Attributes | None:
        """Resource attributes of a target: from now if it lives, else from when it was last seen."""
        target = self._targets.get(pid)
        known = target.attributes if target else None
        return known or describe(pid, self._proc)

    def _look_at(self, target: Target) -> None:
        address_map = read_maps(target.pid, self._proc)
        if address_map is None:
            return
        if target.attributes is None:
            target.attributes = describe(target.pid, self._proc)
        root = self._proc / str(target.pid) / "root"
        for path in {m.path for m in address_map.mappings if is_gpu_library(m.path)}:
            self.attach_library(Path(f"{root}{path}"))
        self._update_layout(target)

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
