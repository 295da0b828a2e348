"""Libraries with probes, found again by a descriptor: through whatever mount, whatever the file has become there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from otel_gpuflame.capture.attached import OVERLAY, Attached, FileKey
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.real_files import is_on_overlay


class Opened(NamedTuple):
    """A file as a process has it."""

    fd: int
    status: os.stat_result
    is_overlaid: bool
    """Whether what `stat` shows may be of several files, and of one file several times."""

    @classmethod
    def of(cls, fd: int) -> Opened:
        """The file of a descriptor. Raises OSError."""
        return cls(fd, os.fstat(fd), is_on_overlay(fd))

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode, as `stat` shows them."""
        return self.status.st_dev, self.status.st_ino


class LibraryTable:
    """Owns how they are found, not their probes and descriptors."""

    def __init__(self) -> None:
        self._attached: dict[FileKey, Attached] = {}
        self._places: dict[tuple[int, int], FileKey] = {}
        """What each place was last."""
        self._overlay_numbers = count(1)

    def __iter__(self) -> Iterator[Attached]:
        """All of them; they may be removed meanwhile."""
        return iter(tuple(self._attached.values()))

    def get(self, key: FileKey) -> Attached | None:
        """One of them, if it still has probes."""
        return self._attached.get(key)

    def at_place_of(self, file: Opened) -> Attached | None:
        """The library that is known at its place, and is that file.

        On an overlay a changed copy takes the place of the file that others still use.
        """
        key = self._places.get(file.place)
        known = None if key is None else self._attached.get(key)
        return known if known and (not file.is_overlaid or self._is_same(known, file)) else None

    def with_points(self, points: tuple[ProbePoint, ...], file: Opened) -> Attached | None:
        """The library that is that file, seen through another overlay. With the same code it has the same points."""
        if not file.is_overlaid:
            return None
        for known in self._attached.values():
            is_candidate = known.key.device == OVERLAY and known.library.points == points
            if is_candidate and self._is_same(known, file):
                self._places[file.place] = known.key
                return known
        return None

    def new_key(self, file: Opened) -> FileKey:
        """For a file that is none of those that are known."""
        if file.is_overlaid:
            return FileKey(OVERLAY, next(self._overlay_numbers))
        return FileKey(*file.place)

    def add(self, attached: Attached) -> None:
        """It has its probes."""
        self._attached[attached.key] = attached
        self._places[attached.status.st_dev, attached.status.st_ino] = attached.key

    def remove(self, key: FileKey) -> None:
        """It has none any more."""
        del self._attached[key]
        self._places = {place: of for place, of in self._places.items() if of != key}

    @staticmethod
    def _is_same(known: Attached, file: Opened) -> bool:
        if known.marker is None or not known.marker.is_in(known.fd):
            return known.looks_like(file.status)
        return known.marker.is_in(file.fd)
