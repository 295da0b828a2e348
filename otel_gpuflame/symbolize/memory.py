"""Bounded reads from the memory of another process. A read that fails is None: the target may end
at any time.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

MAX_READ_BYTES = 1 << 20
_USER_END = 1 << 56
"""No user address of x86-64 (5 level paging) or arm64 lies above; `pread` takes signed offsets."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ProcessMemory:
    """/proc/PID/mem. The descriptor stays with the address space it was opened on, so a reused pid
    is not read.
    """

    def __init__(self, pid: int, proc: Path) -> None:
        try:
            self._fd = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    @property
    def is_open(self) -> bool:
        """False where the process is gone or must not be read: then every read is None."""
        return self._fd >= 0

    def read(self, address: int, size: int) -> bytes | None:
        """Exactly `size` bytes (at most `MAX_READ_BYTES`), or None."""
        if self._fd < 0 or not 0 <= size <= MAX_READ_BYTES or not 0 < address < _USER_END:
            return None
        try:
            data = os.pread(self._fd, size, address)
        except OSError:
            return None
        return data if len(data) == size else None

    def u32(self, address: int) -> int | None:
        """Little-endian unsigned 32 bits."""
        data = self.read(address, 4)
        return None if data is None else int(_U32.unpack(data)[0])

    def u64(self, address: int) -> int | None:
        """Little-endian unsigned 64 bits."""
        data = self.read(address, 8)
        return None if data is None else int(_U64.unpack(data)[0])

    def close(self) -> None:
        """Reads after this are None."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
