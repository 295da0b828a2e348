"""A library with probes, and who uses it through which file system."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from otel_gpuflame.capture.libraries import GpuLibrary
from otel_gpuflame.capture.real_files import Marker
from otel_gpuflame.capture.room import Holding

UNUSED_FOR_NS: Final = 60_000_000_000
"""What no target maps any more is let go after this: its container may be gone."""


@dataclass(frozen=True, slots=True)
class FileKey:
    """A file of the kernel's: uprobes attach to it whatever path or mount namespace it is seen through."""

    device: int
    """`OVERLAY` where overlays show it."""
    inode: int
    """Of an overlay's file a number of our own: what `stat` shows is not one file's alone."""


OVERLAY: Final = 0


class LibraryUse(NamedTuple):
    """A library that a process maps, and the device through which it does."""

    key: FileKey
    device: int


@dataclass(slots=True)
class Attached:
    """A library with probes, held by a descriptor: that leads to it whatever becomes of the process and its mounts."""

    key: FileKey
    library: GpuLibrary
    fd: int
    status: os.stat_result
    """Of the descriptor."""
    holding: Holding
    marker: Marker | None = None
    """Of a file that overlays show: by this it is known."""
    used_ns: dict[int, int] = field(default_factory=dict)
    """By device: when a target was last known to map it through that."""

    @property
    def path(self) -> Path:
        """Leads to the file."""
        return Path(f"/proc/self/fd/{self.fd}")

    @property
    def is_stranded(self) -> bool:
        """Whether nobody uses it any more through the mount that descriptor and probes keep, but others do."""
        return bool(self.used_ns) and self.status.st_dev not in self.used_ns

    def let_go(self) -> None:
        """Of the file and its mount, once there are no more probes."""
        if self.marker is not None:
            self.marker.remove()
            self.marker = None
        os.close(self.fd)

    def use(self, device: int, now_ns: int) -> LibraryUse:
        """A target maps it through `device` now."""
        self.used_ns[device] = now_ns
        return LibraryUse(self.key, device)

    def forget_unused(self, now_ns: int) -> None:
        """Forget devices through which no target has mapped it for a while."""
        for device, used_ns in tuple(self.used_ns.items()):
            if now_ns - used_ns > UNUSED_FOR_NS:
                del self.used_ns[device]

    def looks_like(self, status: os.stat_result) -> bool:
        """Whether another file may be the same, by size and times. A copy was changed later."""
        ours, theirs = (
            (each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in (self.status, status)
        )
        return ours == theirs
