"""The file of a recording, which a refused recording must neither leave behind empty nor overwrite."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from otel_gpuflame.errors import TargetError

logger = logging.getLogger(__name__)

_READER_POLL_S: Final = 0.05


class OutputFile:
    """Open for writing from the start, so that an unwritable path is known before anything is attached."""

    def __init__(self, path: Path, stopped: Callable[[], bool]) -> None:
        """Open it; of a named pipe, wait for a reader until `stopped()`. Raises TargetError."""
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                self._is_new = True
            except FileExistsError:
                fd = _open_pipe(path, stopped) if path.is_fifo() else os.open(path, flags)
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


def _open_pipe(path: Path, stopped: Callable[[], bool]) -> int:
    """Descriptor of a pipe, once somebody reads. An `open` that waits by itself would go on after Ctrl-C."""
    is_told = False
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        else:
            os.set_blocking(fd, True)
            return fd
        if stopped():
            raise TargetError(f"cannot write {path}: nobody reads from this pipe")
        if not is_told:
            logger.warning("%s is a pipe: waiting until somebody reads from it", path)
            is_told = True
        time.sleep(_READER_POLL_S)


@contextlib.contextmanager
def open_output(path: Path | None, stopped: Callable[[], bool]) -> Iterator[OutputFile | None]:
    """The file at `path`, None without one; `stopped` ends the wait for a pipe's reader. Raises TargetError."""
    if path is None:
        yield None
        return
    output = OutputFile(path, stopped)
    try:
        yield output
    finally:
        output.close()
