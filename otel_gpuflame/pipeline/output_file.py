"""The file of a recording, which a refused recording must neither leave behind empty nor overwrite."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from otel_gpuflame.errors import TargetError


class OutputFile:
    """Open for writing from the start, so that an unwritable path is known before anything is attached."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                self._is_new = True
            except FileExistsError:
                fd = os.open(path, flags)
                self._is_new = False
        except OSError as error:
            raise TargetError(f"cannot write {path}: {error.strerror}") from error
        self._path = path
        self._file: BinaryIO = os.fdopen(fd, "wb", buffering=0)
        self._has_begun = False

    def begin(self) -> BinaryIO:
        """The recording begins: an earlier one in this file ends here."""
        # Devices and pipes have no size, and refuse to be cut.
        if os.fstat(self._file.fileno()).st_size:
            self._file.truncate(0)
        self._has_begun = True
        return self._file

    def close(self) -> None:
        """Close; a file that was made for a recording that never began goes."""
        self._file.close()
        if self._is_new and not self._has_begun:
            with contextlib.suppress(OSError):
                self._path.unlink()


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[OutputFile | None]:
    """The file at `path`, None without one. Raises TargetError."""
    if path is None:
        yield None
        return
    output = OutputFile(path)
    try:
        yield output
    finally:
        output.close()
