"""Probes on GPU libraries: one attachment a file, for every process on the host that maps it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.attached import OVERLAY, Attached, FileKey, LibraryUse
from otel_gpuflame.capture.autograd import (
    SeenPasses,
    is_autograd_library,
    read_autograd_library,
)
from otel_gpuflame.capture.bpf.detaching import detach_together
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.bpf.uprobes import ProbePoint, UprobeLinks
from otel_gpuflame.capture.libraries import GpuLibrary, is_gpu_library, read_library
from otel_gpuflame.capture.library_table import LibraryTable, Opened
from otel_gpuflame.capture.real_files import Marker
from otel_gpuflame.capture.refusals import Complaints, FileVersion, Refusals, RetryAt
from otel_gpuflame.capture.room import Holder, Holding, lack_of_room
from otel_gpuflame.capture.seen_returns import SeenReturns

logger = logging.getLogger(__name__)

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


class _NoRoomError(Exception):
    """Too many libraries have probes; the text says whose."""


class Attachments:
    """Libraries with probes. `in_windows`: calls that return at once are probed only while a window is open.

    `passes`: PyTorch's engine is probed, too, and this is told when its backward passes are seen. `returns` is told
    which calls are not seen to return.
    """

    def __init__(
        self,
        links: UprobeLinks,
        *,
        in_windows: bool,
        passes: SeenPasses | None = None,
        returns: SeenReturns | None = None,
    ) -> None:
        self._links = links
        self._in_windows = in_windows
        self._passes = passes
        self._returns = returns
        self._window_is_open = False
        self._windowed_groups: set[ProbeGroup] = set()
        self._table = LibraryTable()
        self._missing: set[tuple[FileKey, ProbeGroup]] = set()
        """Probes that are always on and that the kernel has refused."""
        self._refusals = Refusals()
        self.errors = Complaints()
        self.without_room = 0
        """Attempts for which there was no room."""
        self.late: list[LateProbes] = []
        """Libraries that were first seen when a program mapped them, the latest ones."""
        self.late_count = 0

    @property
    def libraries(self) -> tuple[GpuLibrary, ...]:
        """Libraries with probes attached."""
        return tuple(each.library for each in self._table)

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
        if ProbeGroup.BACKWARD in groups:
            self._end_passes()
        new = set(groups) - self._windowed_groups
        for group in new:
            logger.info("programs make too many %s: probed in windows", group.value)
            self._windowed_groups.add(group)
            for each in self._table:
                self._missing.discard((each.key, group))
                self._links.detach((each.key, group))
        self._lose_returns(new)

    def probe_always(self, groups: Iterable[ProbeGroup]) -> None:
        """Take `probe_in_windows` back. While none is open."""
        again = self._windowed_groups.intersection(groups)
        self._windowed_groups -= again
        self._missing |= {(each.key, group) for each in self._table for group in again}
        self.attach_missing()
        if ProbeGroup.BACKWARD in again:
            self._see_passes()

    def attach_missing(self) -> None:
        """Try again what the kernel has refused. While no window is open."""
        for key, group in tuple(self._missing):
            each = self._table.get(key)
            if each is None:
                self._missing.discard((key, group))
                continue
            points = [point for point in each.library.points if point.group is group]
            try:
                self._links.attach((key, group), each.path, points)
            except LibbpfError as error:
                self._links.detach((key, group))
                self._complain(f"cannot probe {each.library.path} again: {error.strerror}")
            else:
                self._missing.discard((key, group))

    def wants(self, path: str) -> bool:
        """Whether a mapped file of that name should be given to `attach`."""
        return is_gpu_library(path) or (self.sees_passes and is_autograd_library(path))

    def attach(
        self,
        path: Path,
        now_ns: int,
        shown: str = "",
        mapped_ns: int | None = None,
        holder: Holder | None = None,
    ) -> LibraryUse | RetryAt | None:
        """Attach probes to a library file, once; `shown` is its name for people where `path` is none.

        `mapped_ns` is when a program began to use it, where that was reported; it counts for `holder` if it is new.
        None if it is none of ours, or gone; where it cannot be probed now, when to give it again.
        """
        shown = shown or str(path)
        try:
            file = FileVersion.of(path.stat())
        except OSError:
            return None
        if self._refusals.lacks_points(file):
            return None
        later = self._refusals.retry_at(file, now_ns)
        if later is not None:
            return later
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                use = self._attach(fd, now_ns, shown, mapped_ns, holder)
            finally:
                os.close(fd)
        except _NoRoomError as error:
            self.without_room += 1
            if self.without_room == 1:
                self._complain(f"no room for further libraries, as {shown}: {error}")
            return self._refusals.refuse(file, now_ns)
        except OSError as error:
            self._complain(f"cannot probe {shown}: {error.strerror}")
            return self._refusals.refuse(file, now_ns)
        self._refusals.accept(file)
        if use is None:
            self._refusals.has_no_points(file)
        return use

    def used(self, uses: Iterable[LibraryUse], now_ns: int) -> None:
        """Targets map these libraries now."""
        for key, device in uses:
            attached = self._table.get(key)
            if attached is not None:
                attached.use(device, now_ns)

    def let_go_of_unused(self, now_ns: int) -> set[FileKey]:
        """Detach from libraries that no target has mapped for a while.

        Returns those that are held through a container's mount that nobody uses them through any more: `attach` through
        another one lets go of that.
        """
        stranded = set()
        for each in self._table:
            each.forget_unused(now_ns)
            if not each.used_ns:
                self._drop(each)
                logger.info("let go of %s: no process maps it", each.library.path)
            elif each.is_stranded:
                stranded.add(each.key)
        return stranded

    def open_window(self) -> None:
        """Attach the windowed probes of every library; those that tell whose launches they are come first."""
        self._window_is_open = True
        libraries = sorted(self._table, key=lambda each: not _is_autograd(each))
        has_passes = ProbeGroup.BACKWARD in self._windowed_groups
        if has_passes:
            for each in libraries:
                self._attach_windowed(each, {ProbeGroup.BACKWARD})
            self._see_passes()
            time.sleep(PASSES_LEAD_NS / 1e9)
        for each in libraries:
            self._attach_windowed(each, {None, *ProbeGroup} - {ProbeGroup.BACKWARD})

    def close_window(self) -> None:
        """Detach them."""
        self._window_is_open = False
        if ProbeGroup.BACKWARD in self._windowed_groups:
            self._end_passes()
        has_waits = ProbeGroup.WAIT in self._windowed_groups
        self._links.close_window(_RETURN_GRACE_S if has_waits else 0.0)
        self._lose_returns(self._windowed_groups)

    def close(self) -> None:
        """Detach everything and close the files."""
        self._links.detach_all()
        detach_together([each.let_go for each in self._table])
        for each in self._table:
            self._table.remove(each.key)

    def _attach(
        self, fd: int, now_ns: int, shown: str, mapped_ns: int | None, holder: Holder | None
    ) -> LibraryUse | None:
        """None where there is nothing to probe. Raises OSError, _NoRoomError."""
        file = Opened.of(fd)
        known = self._table.at_place_of(file)
        if known is not None:
            return self._use(known, file, now_ns)
        is_autograd = is_autograd_library(shown)
        path = Path(f"/proc/self/fd/{fd}")
        library = read_autograd_library(path) if is_autograd else read_library(path)
        if library is None:
            return None
        known = self._table.with_points(library.points, file)
        if known is not None:
            return self._use(known, file, now_ns)
        # Besides links the file, and its marker.
        descriptors = 1 + file.is_overlaid + self._links.descriptors(library.points)
        holding = Holding(holder, descriptors)
        lack = lack_of_room(holding, (each.holding for each in self._table))
        if lack:
            raise _NoRoomError(lack)
        library = replace(library, path=Path(shown))
        key = self._table.new_key(file)
        attached = Attached(key, library, os.dup(fd), file.status, holding)
        self._attach_new(attached)
        if mapped_ns is not None and not is_autograd:
            self._note_late(attached, mapped_ns)
        return attached.use(file.status.st_dev, now_ns)

    def _use(self, known: Attached, file: Opened, now_ns: int) -> LibraryUse:
        if known.is_stranded and not self._window_is_open:
            # A link keeps the mount that it was attached through. Calls are missed meanwhile, and none seen twice.
            if ProbeGroup.BACKWARD not in self._windowed_groups and _is_autograd(known):
                self._end_passes()
            self._drop(known)
            self._lose_returns({ProbeGroup.WAIT})
            known.fd, known.status = os.dup(file.fd), file.status
            self._attach_new(known)
        return known.use(file.status.st_dev, now_ns)

    def _attach_new(self, attached: Attached) -> None:
        """Raises LibbpfError; then nothing of it is left."""
        library, key = attached.library, attached.key
        points = [p for p in library.points if not self.is_windowed(p)]
        try:
            for group in (None, *ProbeGroup):
                owner = key if group is None else (key, group)
                self._links.attach(owner, attached.path, [p for p in points if p.group is group])
        except LibbpfError:
            self._detach(key)
            attached.let_go()
            raise
        if key.device == OVERLAY:
            attached.marker = Marker.put(attached.fd, library.points[0].offset)
        self._table.add(attached)
        logger.info("%d probes on %s", len(points), library.path)
        if self._window_is_open:
            self._attach_windowed(attached, {None, *ProbeGroup})
        if _is_autograd(attached):
            # It may have been probed before, and let go.
            self._see_passes()

    def _drop(self, attached: Attached) -> None:
        self._detach(attached.key)
        attached.let_go()
        self._table.remove(attached.key)

    def _detach(self, key: FileKey) -> None:
        for owner in (key, *((key, group) for group in ProbeGroup)):
            self._links.detach(owner)

    def _note_late(self, attached: Attached, mapped_ns: int) -> None:
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

    def _lose_returns(self, detached: Collection[ProbeGroup]) -> None:
        """Once the probes are gone: none of the calls that began until now is seen to return."""
        if ProbeGroup.WAIT in detached and self._returns is not None:
            self._returns.lost(time.monotonic_ns())

    def _see_passes(self) -> None:
        """Where the probe on backward passes is attached now, to each library that has them."""
        is_attached = self._window_is_open or ProbeGroup.BACKWARD not in self._windowed_groups
        if is_attached and self._passes is not None:
            self._passes.begin(time.monotonic_ns())

    def _end_passes(self) -> None:
        if self._passes is not None:
            self._passes.end()

    def _attach_windowed(self, attached: Attached, groups: Collection[ProbeGroup | None]) -> None:
        if not self._in_windows:
            return
        points = [p for p in attached.library.points if self.is_windowed(p) and p.group in groups]
        if not points:
            return
        try:
            self._links.attach(attached.key, attached.path, points, in_window=True)
        except LibbpfError as error:
            self._complain(f"cannot open a window on {attached.library.path}: {error.strerror}")

    def _complain(self, text: str) -> None:
        self.errors.add(text)
        logger.warning("%s", text)


def _is_autograd(attached: Attached) -> bool:
    return is_autograd_library(str(attached.library.path))
