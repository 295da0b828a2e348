"""Writing profiles to files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from otel_gpuflame.errors import ExportError


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part.

    What is no regular file (a pipe, /dev/stdout, /dev/null) is written to instead of replaced. A
    symbolic link stays, its target is replaced.

    Raises:
        ExportError: with the path and the reason; nothing is left behind.
    """
    target = Path(path)
    try:
        if _is_special(target):
            target.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(target)), data)
    except OSError as error:
        raise ExportError(f"cannot write {target}: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    """Whether `path` exists and is something that must not be replaced by a file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "it is a directory; name a file in it")
    return not stat.S_ISREG(mode)


def _replace(path: Path, data: bytes) -> None:
    """Write to a new file beside `path`, then put it in its place."""
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.tmp")
    # O_EXCL: in a directory that others may write to, nobody can have put a link there. The mode
    # is what the umask leaves of 0o666, as for any file that a command makes.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
