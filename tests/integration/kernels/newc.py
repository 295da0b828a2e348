# SPDX-License-Identifier: Apache-2.0
"""Writes an initramfs: a cpio archive in the `newc` format, uncompressed, since the guest's CPU is emulated."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath
from typing import IO

_CONSOLE_DEVICE = (5, 1)


class InitramfsWriter:
    """Adds each path once, its parent folders before it. Paths are absolute, as the guest sees them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._written: set[PurePosixPath] = {PurePosixPath("/")}
        self._inode = 0

    def directory(self, path: PurePosixPath) -> None:
        """A folder and those above it."""
        if path in self._written:
            return
        self.directory(path.parent)
        self._entry(path, stat.S_IFDIR | 0o755)

    def file(self, path: PurePosixPath, content: bytes, *, executable: bool = False) -> None:
        """A regular file; a path that was written before keeps its content."""
        self._leaf(path, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def symlink(self, path: PurePosixPath, target: str) -> None:
        """A symbolic link; whatever is added below it later goes to where it leads, so add folders there."""
        self._leaf(path, stat.S_IFLNK | 0o777, target.encode())

    def console(self) -> None:
        """/dev/console, which the kernel opens for the first process."""
        self._leaf(PurePosixPath("/dev/console"), stat.S_IFCHR | 0o600, device=_CONSOLE_DEVICE)

    def copy(self, source: Path, path: PurePosixPath | None = None) -> None:
        """A file of this host with its permission to execute, at its own path or another one."""
        status = source.stat()
        mode = stat.S_IFREG | (0o755 if status.st_mode & stat.S_IXUSR else 0o644)
        # Python takes compiled code for that of a source by the source's time.
        time_s = int(status.st_mtime)
        self._leaf(path or PurePosixPath(source), mode, source.read_bytes(), time_s=time_s)

    def finish(self) -> None:
        """Write the trailer."""
        self._entry(PurePosixPath("TRAILER!!!"), 0)

    def _leaf(
        self,
        path: PurePosixPath,
        mode: int,
        content: bytes = b"",
        *,
        device: tuple[int, int] = (0, 0),
        time_s: int = 0,
    ) -> None:
        if path in self._written:
            return
        self.directory(path.parent)
        self._entry(path, mode, content, device=device, time_s=time_s)

    def _entry(
        self,
        path: PurePosixPath,
        mode: int,
        content: bytes = b"",
        *,
        device: tuple[int, int] = (0, 0),
        time_s: int = 0,
    ) -> None:
        self._written.add(path)
        self._inode += 1
        name = str(path).lstrip("/").encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device of the file system, device, name, checksum
        fields = (self._inode, mode, 0, 0, 1, time_s, len(content), 0, 0, *device, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (header + name, content):
            self._file.write(part + bytes(-len(part) % 4))
