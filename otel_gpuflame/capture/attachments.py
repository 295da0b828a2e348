"""Probes on GPU libraries: one attachment an inode, for every process on the host that maps it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.autograd import (
    SeenPasses,
    is_autograd_library,
    read_autograd_library,
)
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.bpf.uprobes import ProbePoint, UprobeLinks
from otel_gpuflame.capture.libraries import (
    FileKey,
    GpuLibrary,
    is_gpu_library,
    read_library,
)

logger = logging.getLogger(__name__)

_UNUSED_FOR_NS: Final = 60_000_000_000
"""A library that no target maps any more is let go after this: its container may be gone."""

_MAX_LATE: Final = 64
_RETURN_GRACE_S: Final = 0.05
"""So long after a window, calls that began in it are seen to return: without it long waits would be missing more often
than short ones."""

PASSES_LEAD_NS: Final = 20_000_000
"""So long are backward passes seen before launches are, where both are windowed: most that run when a window opens are
known then. Of more than 100 a second of a program, one takes less than 10 ms, unless it holds others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateProbes:
    """A library that a program had mapped before there were probes: calls made in between were not seen."""

    path: Path
    gap_ns: int


@dataclass(slots=True)
class _Attached:
    library: GpuLibrary
    fd: int
    last_used_ns: int

    @property
    def path(self) -> Path:
        """Leads to the inode whatever becomes of the process and the mount through which it was found."""
        return Path(f"/proc/self/fd/{self.fd}")


class Attachments:
    """Libraries with probes. `in_windows`: calls that return at once are probed only while a window is open.

    `passes`: PyTorch's engine is probed, too, and this is told when its backward passes are seen.
    """

    def __init__(
        self, links: UprobeLinks, *, in_windows: bool, passes: SeenPasses | None = None
    ) -> None:
        self._links = links
        self._in_windows = in_windows
        self._passes = passes
        self._window_is_open = False
        self._windowed_groups: set[ProbeGroup] = set()
        self._attached: dict[FileKey, _Attached] = {}
        self._unusable: set[FileKey] = set()
        self.errors: list[str] = []
        self.late: list[LateProbes] = []
        """Libraries that were first seen when a program mapped them, the latest ones."""
        self.late_count = 0

    @property
    def libraries(self) -> tuple[GpuLibrary, ...]:
        """Libraries with probes attached."""
        return tuple(each.library for each in self._attached.values())

    def is_windowed(self, point: ProbePoint) -> bool:
        """Whether this probe is attached only while a window is open."""
        return self._in_windows and (point.windowed or point.group in self._windowed_groups)

    @property
    def window_is_open(self) -> bool:
        """Whether windowed probes are attached."""
        return self._window_is_open

    @property
    def sees_passes(self) -> bool:
        """Whether PyTorch's engine is probed."""
        return self._passes is not None

    def probe_in_windows(self, groups: Collection[ProbeGroup]) -> None:
        """From the next window on, attach these only while a window is open. While none is."""
        if ProbeGroup.BACKWARD in groups and self._passes is not None:
            self._passes.end()
        for group in set(groups) - self._windowed_groups:
            logger.info("programs make too many %s: probed in windows", group.value)
            self._windowed_groups.add(group)
            for key in self._attached:
                self._links.detach((key, group))

    def probe_always(self, groups: Iterable[ProbeGroup]) -> None:
        """Take `probe_in_windows` back. While none is open."""
        again = self._windowed_groups.intersection(groups)
        self._windowed_groups -= again
        for key, each in self._attached.items():
            for group in again:
                points = [point for point in each.library.points if point.group is group]
                try:
                    self._links.attach((key, group), each.path, points)
                except LibbpfError as error:
                    self.errors.append(f"cannot probe {each.library.path} again: {error}")
                    logger.warning("cannot probe %s again: %s", each.library.path, error)
        if ProbeGroup.BACKWARD in again:
            self._see_passes()

    def wants(self, path: str) -> bool:
        """Whether a mapped file of that name should be given to `attach`."""
        return is_gpu_library(path) or (self.sees_passes and is_autograd_library(path))

    def attach(
        self, path: Path, now_ns: int, shown: str = "", mapped_ns: int | None = None
    ) -> FileKey | None:
        """Attach probes to a library file, once; `shown` is its name for people where `path` is none.

        `mapped_ns` is when a program began to use it, where that was reported. None if it is none of ours or the kernel
        refuses.
        """
        try:
            status = path.stat()
        except OSError:
            return None
        key = FileKey(status.st_dev, status.st_ino)
        known = self._attached.get(key)
        if known is not None:
            known.last_used_ns = now_ns
            return key
        if key in self._unusable:
            return None
        is_autograd = is_autograd_library(shown)
        library = read_autograd_library(path) if is_autograd else read_library(path)
        attached = None if library is None else self._open(library, shown or str(path), now_ns)
        if attached is None or not self._attach_new(attached):
            # Unless it was the process that went, and the way to the file with it.
            if path.exists():
                self._unusable.add(key)
            return None
        if mapped_ns is not None and not is_autograd:
            self._note_late(attached, mapped_ns)
        return key

    def used(self, keys: Iterable[FileKey], now_ns: int) -> None:
        """Targets map these libraries now."""
        for key in keys:
            if key in self._attached:
                self._attached[key].last_used_ns = now_ns

    def let_go_of_unused(self, now_ns: int) -> None:
        """Detach from libraries that no target has mapped for a while."""
        for key, each in tuple(self._attached.items()):
            if now_ns - each.last_used_ns > _UNUSED_FOR_NS:
                self._detach(key)
                os.close(each.fd)
                del self._attached[key]
                logger.info("let go of %s: no process maps it", each.library.path)

    def open_window(self) -> None:
        """Attach the windowed probes of every library; those that tell whose launches they are come first."""
        self._window_is_open = True
        each_library = sorted(self._attached.items(), key=lambda item: not _is_autograd(item[1]))
        has_passes = ProbeGroup.BACKWARD in self._windowed_groups
        if has_passes:
            for key, each in each_library:
                self._attach_windowed(key, each, {ProbeGroup.BACKWARD})
            self._see_passes()
            time.sleep(PASSES_LEAD_NS / 1e9)
        for key, each in each_library:
            self._attach_windowed(key, each, {None, *ProbeGroup} - {ProbeGroup.BACKWARD})

    def close_window(self) -> None:
        """Detach them."""
        self._window_is_open = False
        if ProbeGroup.BACKWARD in self._windowed_groups and self._passes is not None:
            self._passes.end()
        has_waits = ProbeGroup.WAIT in self._windowed_groups
        self._links.close_window(_RETURN_GRACE_S if has_waits else 0.0)

    def close(self) -> None:
        """Detach everything and close the files."""
        self._links.detach_all()
        for each in self._attached.values():
            os.close(each.fd)
        self._attached.clear()

    def _open(self, library: GpuLibrary, shown: str, now_ns: int) -> _Attached | None:
        """Keep the file open: its inode must stay reachable for windows."""
        try:
            fd = os.open(library.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.errors.append(f"cannot open {shown}: {error.strerror}")
            return None
        return _Attached(replace(library, path=Path(shown)), fd, now_ns)

    def _attach_new(self, attached: _Attached) -> bool:
        library = attached.library
        points = [p for p in library.points if not self.is_windowed(p)]
        try:
            for group in (None, *ProbeGroup):
                owner = library.key if group is None else (library.key, group)
                self._links.attach(owner, attached.path, [p for p in points if p.group is group])
        except LibbpfError as error:
            self._detach(library.key)
            os.close(attached.fd)
            self.errors.append(f"cannot probe {library.path}: {error}")
            logger.warning("cannot probe %s: %s", library.path, error)
            return False
        self._attached[library.key] = attached
        logger.info("%d probes on %s", len(points), library.path)
        if self._window_is_open:
            self._attach_windowed(library.key, attached, {None, *ProbeGroup})
        if _is_autograd(attached):
            # It may have been probed before, and let go.
            self._see_passes()
        return True

    def _detach(self, key: FileKey) -> None:
        for owner in (key, *((key, group) for group in ProbeGroup)):
            self._links.detach(owner)

    def _note_late(self, attached: _Attached, mapped_ns: int) -> None:
        gap_ns = max(time.monotonic_ns() - mapped_ns, 0)
        path = attached.library.path
        self.late.append(LateProbes(path=path, gap_ns=gap_ns))
        del self.late[:-_MAX_LATE]
        self.late_count += 1
        logger.info(
            "%s was probed %.1f ms after it was mapped: calls before are missing",
            path,
            gap_ns / 1e6,
        )

    def _see_passes(self) -> None:
        """Where the probe on backward passes is attached now, to each library that has them."""
        is_attached = self._window_is_open or ProbeGroup.BACKWARD not in self._windowed_groups
        if is_attached and self._passes is not None:
            self._passes.begin(time.monotonic_ns())

    def _attach_windowed(
        self, key: FileKey, attached: _Attached, groups: Collection[ProbeGroup | None]
    ) -> None:
        if not self._in_windows:
            return
        points = [p for p in attached.library.points if self.is_windowed(p) and p.group in groups]
        if not points:
            return
        try:
            self._links.attach(key, attached.path, points, in_window=True)
        except LibbpfError as error:
            self.errors.append(f"cannot open a window on {attached.library.path}: {error}")
            logger.warning("cannot open a window on %s: %s", attached.library.path, error)


def _is_autograd(attached: _Attached) -> bool:
    return is_autograd_library(str(attached.library.path))
