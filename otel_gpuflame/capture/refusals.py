"""Files that could not be probed: which of them are worth another attempt, when, and what is said of it."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

_FIRST_DELAY_NS: Final = 1_000_000_000
_LONGEST_DELAY_NS: Final = 300_000_000_000
_MAX_FILES: Final = 1024
"""Of each sort. One that is forgotten is read, or tried, once more."""
_MAX_TEXTS: Final = 64


class RetryAt(NamedTuple):
    """A library that gets no probes now, and is to be given again."""

    time_ns: int


class FileVersion(NamedTuple):
    """A file as it is now: with an inode number of a file that is gone, and when it was written to, it is another."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        """What `stat` says."""
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return cls(status.st_dev, status.st_ino, status.st_size, *times)


@dataclass(slots=True)
class _Refused:
    retry_ns: int
    delay_ns: int = _FIRST_DELAY_NS


class Refusals:
    """Remembers a bounded number of files without probes."""

    def __init__(self) -> None:
        self._without_points: OrderedDict[FileVersion, None] = OrderedDict()
        self._refused: OrderedDict[FileVersion, _Refused] = OrderedDict()

    def has_no_points(self, file: FileVersion) -> None:
        """There is nothing to probe in it: that will not change."""
        self._without_points[file] = None
        if len(self._without_points) > _MAX_FILES:
            self._without_points.popitem(last=False)

    def lacks_points(self, file: FileVersion) -> bool:
        """Whether `has_no_points` was said of it."""
        return file in self._without_points

    def refuse(self, file: FileVersion, now_ns: int) -> RetryAt:
        """It could not be probed; memory or descriptors may be there again later. Each time twice as late."""
        known = self._refused.pop(file, None)
        delay_ns = _FIRST_DELAY_NS if known is None else min(2 * known.delay_ns, _LONGEST_DELAY_NS)
        self._refused[file] = _Refused(now_ns + delay_ns, delay_ns)
        if len(self._refused) > _MAX_FILES:
            self._refused.popitem(last=False)
        return RetryAt(now_ns + delay_ns)

    def retry_at(self, file: FileVersion, now_ns: int) -> RetryAt | None:
        """When to try again; None: now."""
        known = self._refused.get(file)
        return None if known is None or known.retry_ns <= now_ns else RetryAt(known.retry_ns)

    def accept(self, file: FileVersion) -> None:
        """It has its probes."""
        self._refused.pop(file, None)


class Complaints:
    """What could not be done, each text once, a bounded number of them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.total = 0

    def add(self, text: str) -> None:
        """Once more."""
        self.total += 1
        if text in self._counts or len(self._counts) < _MAX_TEXTS:
            self._counts[text] += 1

    def texts(self) -> tuple[str, ...]:
        """In order of first occurrence, with how often each was; last, how many others were left out."""
        texts = [text if n == 1 else f"{text} ({n:,} times)" for text, n in self._counts.items()]
        left_out = self.total - self._counts.total()
        return (*texts, f"and {left_out:,} more of other libraries") if left_out else tuple(texts)
