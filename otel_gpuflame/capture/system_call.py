"""System calls that Python does not have, by number."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

_NUMBERS: Final = {
    "x86_64": {"bpf": 321, "futex": 202, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "futex": 98, "perf_event_open": 241},
}
_libc: Final = ctypes.CDLL(None, use_errno=True)


def system_call(name: str, *arguments: Any) -> int:
    """What the kernel returned, or -errno. Arguments are what ctypes takes: integers are C ints."""
    number = _NUMBERS.get(os.uname().machine, {}).get(name)
    if number is None:
        return -errno.ENOSYS
    result = int(_libc.syscall(number, *arguments))
    return result if result >= 0 else -ctypes.get_errno()
