"""Which file of the kernel's is behind a name: overlay file systems show one file under many names and numbers.

Each container has an overlay of its own over the layers of its image. A file that it has not changed is the same for
all of them, and probes are on that one file. Neither the device nor the inode number that `stat` shows tells which
files are the same: each overlay has a device of its own, numbers depend on its options, and a file that was copied up
keeps its number. The kernel tells by what it does: it puts a probe into whatever maps the probed file. Probes on
functions are not proof enough, since another profiler, or another exporter, has them on every such library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.perf_events import open_uprobe

_OVERLAYFS_MAGIC: Final = 0x794C7630
_STATFS_BYTES: Final = 256
"""More than any architecture's struct statfs; the type is its first word."""
_INSTRUCTION_BYTES: Final = 4
_TRIED_BYTES: Final = 12
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def is_on_overlay(fd: int) -> bool:
    """Whether other overlays may show the same file."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, answer):
        return False
    return ctypes.c_long.from_buffer(answer).value == _OVERLAYFS_MAGIC


class Marker:
    """A probe on a file that only our own mappings show, and that nothing ever executes."""

    def __init__(self, event: int, offset: int) -> None:
        self._event = event
        self._offset = offset

    @classmethod
    def put(cls, fd: int, function: int) -> Marker | None:
        """Into the file, behind the begin of a function; None where the kernel takes none there."""
        first, step = (4, 4) if os.uname().machine == "aarch64" else (1, 1)
        for offset in range(function + first, function + _TRIED_BYTES, step):
            if shows_probe(fd, offset):
                continue
            try:
                path = Path(f"/proc/self/fd/{fd}")
                event = open_uprobe(path, offset, is_return=False, is_own=True)
            except LibbpfError:
                return None
            if shows_probe(fd, offset):
                return cls(event, offset)
            os.close(event)
        return None

    def is_in(self, fd: int) -> bool:
        """Whether this is the file."""
        return shows_probe(fd, self._offset)

    def remove(self) -> None:
        """From the file, and from the mount through which it was put there."""
        os.close(self._event)


def shows_probe(fd: int, offset: int) -> bool:
    """Whether the kernel has a probe at `offset` of this file; False also where it cannot be mapped.

    Maps a page for 0.02 ms. Whatever is read of it is never executed.
    """
    start = offset - offset % mmap.PAGESIZE
    address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, start)
    if address is None or address == _MAP_FAILED:
        return False
    try:
        # Not by the address: where a target cuts its file short meanwhile, that would be the end of us.
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            mapped = os.pread(memory.fileno(), _INSTRUCTION_BYTES, address + offset - start)
        return mapped != os.pread(fd, _INSTRUCTION_BYTES, offset)
    except OSError:
        return False
    finally:
        _libc.munmap(address, mmap.PAGESIZE)
