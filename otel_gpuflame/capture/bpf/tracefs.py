"""Numbers and fields of tracepoints, also on hosts where nobody has mounted tracefs."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

_MOUNT_POINTS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# Numbers of the system calls are the same on every architecture since Linux 5.2.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSCONFIG_CMD_CREATE: Final = 6
_CLOEXEC: Final = 1
# field:long prev_state;	offset:32;	size:8;	signed:1;
_FIELD: Final = re.compile(r"field:[^;]*?(\w+)(?:\[[^;]*\])?;\s*offset:(\d+);")


def tracepoint_id(category: str, name: str) -> int | None:
    """The id that perf_event_open wants, or None if there is no such tracepoint or no access to tracefs."""
    text = _read_event_file(category, name, "id")
    return int(text) if text is not None and text.strip().isdigit() else None


def tracepoint_fields(category: str, name: str) -> dict[str, int]:
    """Offset of each field in a tracepoint's record, as this kernel lays it out; empty where it cannot be read."""
    return {
        field: int(offset)
        for field, offset in _FIELD.findall(_read_event_file(category, name, "format") or "")
    }


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


def _read_event_file(category: str, name: str, file: str) -> str | None:
    relative = Path("events") / category / name / file
    for root in _MOUNT_POINTS:
        text = _read(root / relative)
        if text is not None:
            return text
    mount = detached_mount("tracefs")
    if mount is None:
        return None
    try:
        return _read(Path(f"/proc/self/fd/{mount}") / relative)
    finally:
        os.close(mount)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
