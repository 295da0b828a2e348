"""Numbers of tracepoints, also on hosts where nobody has mounted tracefs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_MOUNT_POINTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# Numbers of the system calls are the same on every architecture since Linux 5.2.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSCONFIG_CMD_CREATE: Final = 6
_CLOEXEC: Final = 1


def tracepoint_id(category: str, name: str) -> int | None:
    """The id that perf_event_open wants, or None if there is no such tracepoint or no access to tracefs."""
    relative = Path("events") / category / name / "id"
    for root in _MOUNT_POINTS:
        found = _read_number(root / relative)
        if found is not None:
            return found
    mount = detached_mount("tracefs")
    if mount is None:
        return None
    try:
        return _read_number(Path(f"/proc/self/fd/{mount}") / relative)
    finally:
        os.close(mount)


def detached_mount(filesystem: str) -> int | None:
    """A descriptor of a file system that is mounted nowhere: the host's mount table stays as it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    context = libc.syscall(_FSOPEN, filesystem.encode(), _CLOEXEC)
    if context < 0:
        return None
    try:
        if libc.syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0) < 0:
            return None
        mount = libc.syscall(_FSMOUNT, context, _CLOEXEC, 0)
        return int(mount) if mount >= 0 else None
    finally:
        os.close(context)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
