"""Mapped files, opened safely and parsed once each."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from otel_gpuflame.symbolize.elf import ElfBytes, ElfError, ElfHeaders, FileBytes, read_headers
from otel_gpuflame.symbolize.elf_symbols import (
    FunctionTable,
    Symbol,
    find_dynamic_symbol,
    find_symbol,
)
from otel_gpuflame.symbolize.maps import Mapping

MAX_OPEN_FILES = 256
"""Each holds a descriptor; services start with a limit of 1024. A PyTorch process maps 109
libraries.
"""

MAX_REMEMBERED_FILES = 16 * MAX_OPEN_FILES


class ElfFile:
    """One ELF file. The function table (0.1 s for the largest libraries) is made at the first
    look-up.
    """

    def __init__(self, data: ElfBytes) -> None:
        self.data = data
        self.headers: ElfHeaders = read_headers(data)

    @cached_property
    def functions(self) -> FunctionTable:
        """Functions by ELF address."""
        return FunctionTable(self.data, self.headers)

    def dynamic_symbol(self, name: str) -> Symbol | None:
        """An exported symbol."""
        return find_dynamic_symbol(self.data, self.headers, name)

    def symbol(self, name: str) -> Symbol | None:
        """An exported symbol, or one that only the full symbol table has."""
        return find_symbol(self.data, self.headers, name)


FileKey = tuple[int, int, int, int]
"""(device, inode, modification time in ns, size): a file that was written to is another file."""


FileIdentity = tuple[str, int, str]
"""`Mapping.file_identity`."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(cache: OrderedDict[_Key, _Value], key: _Key, value: _Value, limit: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > limit:
        cache.popitem(last=False)


class ElfFiles:
    """The files of all processes, least recently used ones closed first."""

    def __init__(self, max_open: int = MAX_OPEN_FILES) -> None:
        self._max_open = max_open
        self._files: OrderedDict[FileKey, ElfFile | None] = OrderedDict()
        self._keys: OrderedDict[FileIdentity, FileKey] = OrderedDict()
        self.unreadable = 0
        """Files that could not be opened or are not ELF files, so far."""

    def open(self, pid: int, mapping: Mapping, proc: Path) -> ElfFile | None:
        """The file behind `mapping`; None (and counted) where there is none that can be read.

        Files seen before are still found when the process has ended.
        """
        fd = open_mapped_file(pid, mapping, proc)
        if fd is None:
            return self._seen_before(mapping)
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        _remember(self._keys, mapping.file_identity, key, MAX_REMEMBERED_FILES)
        if key in self._files:
            os.close(fd)
            self._files.move_to_end(key)
            return self._files[key]
        file = self._parse(fd)
        _remember(self._files, key, file, self._max_open)
        return file

    def _seen_before(self, mapping: Mapping) -> ElfFile | None:
        key = self._keys.get(mapping.file_identity)
        file = None if key is None else self._files.get(key)
        self.unreadable += file is None
        return file

    def _parse(self, fd: int) -> ElfFile | None:
        try:
            return ElfFile(FileBytes(fd))
        except ElfError:
            self.unreadable += 1
            return None


def open_mapped_file(pid: int, mapping: Mapping, proc: Path) -> int | None:
    """A read-only descriptor of the regular file behind a mapping, in whatever mount namespace it
    lives.

    By name first, accepted when the inode is the mapped one; then through map_files, which also
    reaches deleted files but needs CAP_CHECKPOINT_RESTORE; then by name again, since overlay file
    systems show other inode numbers.
    """
    if not mapping.is_file:
        return None
    # No Path: it interns each part, and Python 3.12 frees no interned string. Each process has other ranges.
    root = f"{proc}/{pid}"
    by_name = None if mapping.deleted else open_regular(f"{root}/root/{mapping.path.lstrip('/')}")
    if by_name is not None and os.fstat(by_name).st_ino == mapping.inode:
        return by_name
    by_range = open_regular(f"{root}/map_files/{mapping.text}", follow=True)
    if by_range is None:
        return by_name
    if by_name is not None:
        os.close(by_name)
    return by_range


def open_regular(path: Path | str, *, follow: bool = False) -> int | None:
    """Opens a file only if it is regular: opening a device or a pipe of the target would have
    effects.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(handle)
