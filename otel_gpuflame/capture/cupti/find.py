"""Finds the memfd of the injected library among the descriptors of a process.

Whatever lies behind a descriptor of a target may block or act when it is opened (a FIFO, a tape, a file system in user
space). So it is pinned with O_PATH first, which does neither, and opened for use when it is known to be a memfd.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.cupti.errors import (
    InUseError,
    MalformedError,
    NotOursError,
    NotReadyError,
)
from otel_gpuflame.events.wire_gpu import Limit

NAME: Final = "otel_gpuflame"
_LINK: Final = f"/memfd:{NAME} (deleted)"
_MAX_DESCRIPTORS: Final = 1 << 14
"""Looked at in each process: a process may have a million, at 2 µs each."""
_MAX_MAPS_BYTES: Final = 32 << 20
_MAX_REGION_BYTES: Final = 128 << 20
_MIN_REGION_BYTES: Final = 2 * Limit.PAGE_BYTES
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class RegionFile:
    """An opened memfd that is sealed against resizing. Whoever has it closes `fd`."""

    fd: int
    inode: int
    size_bytes: int


def region_descriptors(pid: int, proc: Path = Path("/proc")) -> Iterator[str]:
    """Paths of descriptors of a process that are called like a region; nothing where the process is gone.

    Raises OSError where it cannot be looked at.
    """
    directory = proc / str(pid) / "fd"
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, _MAX_DESCRIPTORS):
                if _link(entry.path) == _LINK:
                    yield entry.path
    except (FileNotFoundError, ProcessLookupError):
        return


def open_region(
    path: str, pid: int, proc: Path = Path("/proc"), known: Container[int] = ()
) -> RegionFile:
    """Open what `region_descriptors` found, as its only user. `known`: inodes that are in use here already.

    Raises RegionError; OSError where the process is gone or the file must not be opened.
    """
    pinned = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if _mount_id(pinned) != _memfd_mount_id():
            raise MalformedError("a file with the name of the region that is no memfd")
        status = os.fstat(pinned)
        if status.st_ino in known:
            raise NotOursError("read already")
        if not stat.S_ISREG(status.st_mode):
            raise MalformedError("a memfd that is no regular file")
        # Where the target has taken a lease on its file, opening it would else wait for as long as 45 s.
        fd = os.open(f"/proc/self/fd/{pinned}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(pinned)
    try:
        # Sealed, its size cannot change any more.
        is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size_bytes = os.fstat(fd).st_size
        # A child of fork has the descriptor too, but not the mapping (MADV_DONTFORK): the region is its parent's.
        if not _is_mapped_whole(status.st_ino, size_bytes, pid, proc):
            raise NotOursError("a memfd that the process does not map")
        if not is_sealed:
            raise NotReadyError("a memfd that is not sealed against resizing")
        _lock(fd)
        if not _MIN_REGION_BYTES <= size_bytes <= _MAX_REGION_BYTES:
            raise MalformedError(f"a region of {size_bytes} bytes")
        return RegionFile(fd, status.st_ino, size_bytes)
    except BaseException:
        os.close(fd)
        raise


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError("read by another exporter") from None


def _is_mapped_whole(inode: int, size_bytes: int, pid: int, proc: Path) -> bool:
    """As the library does it; an exporter maps the first two pages only."""
    with (proc / str(pid) / "maps").open("rb") as file:
        text = file.read(_MAX_MAPS_BYTES)
    line = rb"^([0-9a-f]+)-([0-9a-f]+) rw-s 0+ \S+ %d +%s$" % (inode, re.escape(_LINK.encode()))
    ranges = ((int(start, 16), int(end, 16)) for start, end in re.findall(line, text, re.M))
    return any(0 <= end - start - size_bytes < mmap.PAGESIZE for start, end in ranges)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@cache
def _memfd_mount_id() -> str:
    """The kernel's own mount that every memfd is on; nothing else can be put there."""
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    try:
        return _mount_id(fd)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> str:
    """Asks the kernel's tables only, where fstat might ask a file system that does not answer."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "mnt_id":
                return value.strip()
    return ""
