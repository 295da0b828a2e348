"""Bounded reads of the files of one process under /proc/PID. All raise OSError where it is gone or unreadable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 1 << 20
_PARENT_FIELD: Final = 4


def read_bytes(path: Path, limit: int = _MAX_BYTES) -> bytes:
    """The first `limit` bytes."""
    with path.open("rb") as file:
        return file.read(limit)


def read_strings(path: Path) -> list[str]:
    """Strings that end in NUL, as in cmdline and environ. One that was cut at the limit is left out."""
    data = read_bytes(path)
    items = data.rstrip(b"\0").split(b"\0")
    if len(data) == _MAX_BYTES:
        items.pop()
    return [item.decode("utf-8", "replace") for item in items] if data else []


def executable_of(pid: int, proc: Path) -> str:
    """Path of the program, as its own mount namespace names it."""
    return os.readlink(proc / str(pid) / "exe").removesuffix(" (deleted)")


def process_of(pid: int, proc: Path) -> int:
    """The process that `pid` is a thread of, itself where it is one: threads have their directory in /proc too.

    Raises ProcessLookupError where the kernel does not say.
    """
    # As bytes: a process may have any name.
    text = read_bytes(proc / str(pid) / "status")
    try:
        return int(text.partition(b"\nTgid:")[2].split(maxsplit=1)[0])
    except (IndexError, ValueError):
        raise ProcessLookupError(pid) from None


def parent_of(pid: int, proc: Path) -> int:
    """Pid of the parent, 0 where it has none in this pid namespace."""
    text = read_bytes(proc / str(pid) / "stat")
    # The name in field 2 may hold blanks and parentheses.
    fields = text.rpartition(b")")[2].split()
    try:
        return int(fields[_PARENT_FIELD - 3])
    except (IndexError, ValueError):
        return 0
