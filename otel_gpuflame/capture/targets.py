"""The processes being captured, kept up to date while they fork, exec and load code."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from otel_gpuflame.capture.attachments import Attachments
from otel_gpuflame.capture.bpf.backend import CaptureBackend
from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.describe import Attributes, describe, publishes_itself
from otel_gpuflame.capture.describe.proc_files import process_of
from otel_gpuflame.capture.libraries import is_gpu_library, is_profiling_library
from otel_gpuflame.capture.refusals import RetryAt
from otel_gpuflame.capture.room import holder_of
from otel_gpuflame.capture.target import SETTLE_NS, Target, forked, looks
from otel_gpuflame.capture.target_value import NOTHING_KNOWN, target_value
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.elf_files import ElfFiles, open_mapped_file
from otel_gpuflame.symbolize.maps import AddressMap, read_maps
from otel_gpuflame.symbolize.start_time import is_running, start_monotonic_ns

logger = logging.getLogger(__name__)

_LOOKS_FOR_DESCRIPTION: Final = 4
"""So many of the last looks, from 0.2 s after a change on, at 1 ms each: a program that ends within a second may have
published its name by then. The first looks come often while a program loads its libraries."""

_GONE_FOR_NS: Final = 1_000_000_000
"""Reports take milliseconds."""
_CHECKED: Final = 64
"""Processes that are looked for in a second: 17 µs each."""


class Targets:
    """Keeps BPF's `targets` map and the uprobes in step with the processes."""

    def __init__(
        self,
        kernel: CaptureBackend,
        attachments: Attachments,
        *,
        host_wide: bool = False,
        watches_cupti: bool = False,
        proc: Path = Path("/proc"),
        files: ElfFiles | None = None,
    ) -> None:
        self._kernel = kernel
        self._attachments = attachments
        self._host_wide = host_wide
        self._watches_cupti = watches_cupti
        self._proc = proc
        self._targets: dict[int, Target] = {}
        self._files = files or ElfFiles()
        self._redescribed: set[int] = set()
        self._changed: set[int] = set()
        self._denied: set[int] = set()
        self._refused: set[int] = set()
        self._unchecked: list[int] = []
        """Those that `drop_gone` has not come to in this turn."""
        self.refused = 0
        """Processes that are not captured because BPF's table of targets is full."""
        self.unreadable = 0
        """Processes that we lack the right to look into."""
        self.unreported = 0
        """Processes whose end BPF did not report."""

    def __len__(self) -> int:
        return len(self._targets)

    def add(self, pid: int, now_ns: int) -> None:
        """Capture a process from now on, unless it is ourselves. Raises TargetError if there is no such process."""
        if pid == os.getpid():
            return
        try:
            process = process_of(pid, self._proc)
        except OSError:
            raise TargetError(
                f"no process {pid}: check the pid, and that it is one of this host"
            ) from None
        # BPF tells processes apart, not threads.
        if process != pid:
            raise TargetError(f"{pid} is a thread of process {process}: record that one")
        start_ns = start_monotonic_ns(pid, self._proc) or 0
        if not self._take_in(pid, start_ns, now_ns):
            return
        if not is_running(ProcessKey(pid, start_ns), self._proc):
            # It ended in between: BPF will not tell, and the pid may soon mean another process.
            self._drop(pid)
            raise TargetError(f"process {pid} has just ended")

    def add_tree(self, pid: int, now_ns: int) -> None:
        """Capture a process with its descendants. Raises TargetError if there is no such process.

        Its family may change meanwhile: BPF follows a child that is forked after its parent was added, so whoever is
        still missing was forked before that, and the next listing has it. Listed children may have ended.
        """
        self.add(pid, now_ns)
        added = {pid}
        while missing := [each for each in self._descendants(pid) if each not in added]:
            for each in missing:
                with contextlib.suppress(TargetError):
                    self.add(each, now_ns)
            added.update(missing)

    def _take_in(self, pid: int, start_ns: int, now_ns: int) -> bool:
        """Whether there is room for it."""
        if self._kernel.targets.set(_key(pid), NOTHING_KNOWN):
            self._targets[pid] = Target(pid, start_ns, due_ns=looks(now_ns - SETTLE_NS))
            return True
        if not self.refused:
            logger.warning(
                "more processes than the targets map holds: process %d is not captured", pid
            )
        if pid not in self._refused:
            self._refused.add(pid)
            self.refused += 1
        return False

    def _drop(self, pid: int) -> None:
        """Capture whoever has that pid no more."""
        del self._targets[pid]
        self._denied.discard(pid)
        self._kernel.targets.delete(_key(pid))
        self._kernel.costs.delete(_key(pid))

    def _descendants(self, pid: int) -> Iterator[int]:
        """The process and all its present descendants."""
        yield pid
        for children in (self._proc / str(pid) / "task").glob("*/children"):
            try:
                text = children.read_bytes()
            except OSError:
                continue
            for child in text.split():
                yield from self._descendants(int(child))

    def apply(self, change: ProcessChange, now_ns: int) -> Attributes | None:
        """Follow a change that BPF reported; `attend` when all of a round are applied.

        For an exec: how the program before it is described.
        """
        pid = change.process.tgid
        if change.change is wire.ProcessChange.EXIT:
            ended = self._targets.get(pid)
            if ended is not None and ended.is_same(change.process):
                ended.has_ended = True
            return None
        known = self._targets.get(pid)
        if known is not None and (known.has_ended or not known.is_same(change.process)):
            # Its last calls are not through yet, or its end got lost, and the pid already means another process.
            del self._targets[pid]
        if change.change is wire.ProcessChange.FORK:
            parent = self._targets.get(change.parent.tgid)
            is_known = parent is not None and parent.is_same(change.parent)
            self._targets[pid] = forked(change.process, parent if is_known else None)
        target = self._targets.setdefault(pid, Target(pid))
        target.start_ns = change.process.start_ns or target.start_ns
        former = None
        if change.change is wire.ProcessChange.EXEC:
            former = target.described_before(change.time_ns)
            target.replace_program()
        elif change.maps_gpu_library and target.mapped_ns is None:
            target.mapped_ns = change.time_ns
        target.comm = change.comm
        target.changed(now_ns)
        self._changed.add(pid)
        return former

    def attend(self, now_ns: int) -> None:
        """What cannot wait for the next look, for the processes that have changed in this round.

        Each call on a library that is not probed yet is missed, and a process may live for milliseconds only.
        """
        changed, self._changed = self._changed, set()
        for target in [self._targets[pid] for pid in changed if pid in self._targets]:
            if target.mapped_ns is not None:
                address_map = read_maps(target.pid, self._proc)
                if address_map is not None:
                    self._attach_libraries(target, address_map, now_ns)
            if target.attributes is None:
                self._describe(target)

    def probe_libraries(self, pid: int) -> None:
        """Put probes on what a target has mapped, without waiting for its next look."""
        target = self._targets.get(pid)
        address_map = read_maps(pid, self._proc) if target is not None else None
        if target is not None and address_map is not None:
            self._attach_libraries(target, address_map, time.monotonic_ns())

    def forget(self, pid: int) -> None:
        """Drop a process that has ended, unless its pid already means another one."""
        target = self._targets.get(pid)
        if target is not None and target.has_ended:
            del self._targets[pid]
            self._denied.discard(pid)

    def look(self, now_ns: int) -> None:
        """Look again at every process whose time has come."""
        for target in tuple(self._targets.values()):
            if target.take_due(now_ns):
                self._look_at(target, now_ns)

    def scan(self, now_ns: int) -> None:
        """Find the processes of the host that map a GPU library already."""
        pids = {int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()}
        self._refused &= pids
        for pid in pids - {os.getpid()} - self._targets.keys():
            start_ns = start_monotonic_ns(pid, self._proc) or 0
            if self._maps_gpu_library(pid) and self._take_in(pid, start_ns, now_ns):
                self._kernel.costs.set(_key(pid), np.zeros(1, wire.COST).tobytes())
                if not is_running(ProcessKey(pid, start_ns), self._proc):
                    # It ended in between: BPF will not tell, and the pid may soon mean another process.
                    self._drop(pid)

    def drop_gone(self, now_ns: int) -> list[ProcessKey]:
        """Let go of processes whose end was not reported, and return them: once a second, some of all each time.

        Not when they are first seen to be gone: the report may be on its way, and their last calls with it.
        """
        dropped = []
        for pid in self._next_checked():
            target = self._targets[pid]
            if target.has_ended or is_running(target.process, self._proc):
                target.gone_since_ns = None
            elif target.gone_since_ns is None:
                target.gone_since_ns = now_ns
            elif now_ns - target.gone_since_ns >= _GONE_FOR_NS:
                self._drop(pid)
                dropped.append(target.process)
        self.unreported += len(dropped)
        return dropped

    def _next_checked(self) -> list[int]:
        if not self._unchecked:
            self._unchecked = list(self._targets)
        chosen, self._unchecked = self._unchecked[:_CHECKED], self._unchecked[_CHECKED:]
        return [pid for pid in chosen if pid in self._targets]

    def keep_libraries(self, now_ns: int) -> None:
        """Say which libraries are still in use, and let go of the others."""
        living = [target for target in self._targets.values() if not target.has_ended]
        for target in living:
            self._attachments.used(target.libraries, now_ns)
        stranded = self._attachments.let_go_of_unused(now_ns)
        for target in living if stranded else ():
            if any(use.key in stranded for use in target.libraries):
                self.probe_libraries(target.pid)

    def pids(self) -> list[int]:
        """Targets that live."""
        return [pid for pid, target in self._targets.items() if not target.has_ended]

    def gpu_pids(self) -> list[int]:
        """Those of them that map a library with probes."""
        return [pid for pid in self.pids() if self._targets[pid].libraries]

    def uses_gpu_library(self, pid: int) -> bool:
        """Whether a target maps a library with probes."""
        target = self._targets.get(pid)
        return target is not None and bool(target.libraries)

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
            self._note_unreadable(target.pid)
            return
        self._attach_libraries(target, address_map, now_ns)
        if target.attributes is None or len(target.due_ns) < _LOOKS_FOR_DESCRIPTION:
            self._describe(target)
        self._update_value(target)

    def _attach_libraries(self, target: Target, address_map: AddressMap, now_ns: int) -> None:
        mapped_ns, target.mapped_ns = target.mapped_ns, None
        retries_ns: list[int] = []
        holder = holder_of(target.pid, self._proc)
        libraries = {m.file_identity: m for m in address_map.mappings if self._is_probed(m.path)}
        for mapping in libraries.values():
            # The mapped inode itself: a driver update replaces the file under running programs, and a path inside a
            # target's root may lead out of it through a link.
            fd = open_mapped_file(target.pid, mapping, self._proc)
            if fd is None:
                continue
            use = self._attachments.attach(
                Path(f"/proc/self/fd/{fd}"),
                now_ns,
                mapping.path,
                mapped_ns if is_gpu_library(mapping.path) else None,
                holder,
            )
            os.close(fd)
            if isinstance(use, RetryAt):
                retries_ns.append(use.time_ns)
            elif use is not None:
                target.libraries.add(use)
        target.retry_ns = min(retries_ns, default=None)

    def _is_probed(self, path: str) -> bool:
        is_client = self._watches_cupti and is_profiling_library(path)
        return is_client or self._attachments.wants(path)

    def _note_unreadable(self, pid: int) -> None:
        """Tell a process that has gone from one that we may not look into."""
        try:
            (self._proc / str(pid) / "maps").open("rb").close()
        except PermissionError:
            if pid not in self._denied:
                self._denied.add(pid)
                self.unreadable += 1
        except OSError:
            pass

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
        self._redescribed |= target.describe(attributes, time.monotonic_ns())

    def _update_value(self, target: Target) -> None:
        value = target_value(target, self._proc, self._files)
        if value != target.layout:
            # BPF removes a process that ends. Its pid must not come back: it may soon mean another one.
            self._kernel.targets.set(_key(target.pid), value, must_exist=True)
            target.layout = value


def _key(pid: int) -> bytes:
    return pid.to_bytes(4, "little")
