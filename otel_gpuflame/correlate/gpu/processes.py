"""Processes whose executions are delivered: short numbers for them, and until when they are complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.frames import ProcessKey

FOREVER: Final = 1 << 62
"""After every time that occurs."""
_MAX_FORMER: Final = 1 << 12
MAX_PROCESSES: Final = 1 << 16
"""Numbers have 16 bits, so that one word holds number and thread, or number and correlation id."""


@dataclass(slots=True, kw_only=True)
class Tracked:
    """One process. `complete_ns`: executions of all launches before it have been delivered."""

    key: ProcessKey
    number: int
    begin_ns: int
    complete_ns: int
    end_ns: int = FOREVER
    last_ns: int = 0
    """End of the last execution that was delivered."""
    is_partial: bool = False
    """It gave its devices work that nobody has seen, before `begin_ns`."""
    has_ended: bool = False
    """No further call of it, or of the program that it ran, will come."""

    def is_over(self, until_ns: int) -> bool:
        """Whether all of it lies before a time."""
        return max(self.end_ns, self.last_ns) <= until_ns


@dataclass(slots=True)
class Processes:
    """Tracked processes by key, and as columns."""

    tracked: dict[ProcessKey, Tracked] = field(default_factory=dict)
    _former: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_FORMER))
    _free: list[int] = field(default_factory=list)
    _tgids: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    _starts: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    _numbers: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    def track(self, key: ProcessKey, begin_ns: int, complete_ns: int) -> Tracked | None:
        """Begin to track a process, or go on; None where there are too many."""
        known = self.tracked.get(key)
        if known is not None:
            if known.end_ns != FOREVER:
                known.begin_ns, known.complete_ns, known.end_ns = begin_ns, complete_ns, FOREVER
            return known
        if len(self.tracked) >= MAX_PROCESSES:
            return None
        number = self._free.pop() if self._free else len(self.tracked)
        new = Tracked(key=key, number=number, begin_ns=begin_ns, complete_ns=complete_ns)
        self.tracked[key] = new
        self._index()
        return new

    def untrack(self, key: ProcessKey) -> None:
        """Its number may be given to another process."""
        self._free.append(self.tracked.pop(key).number)
        self._former.append(key.tgid)
        self._index()

    def pids(self) -> set[int]:
        """Of these, and of those that were tracked lately: counters of devices tell of a process after its end."""
        return {each.tgid for each in self.tracked} | set(self._former)

    def numbers_of(self, rows: NDArray[np.void]) -> NDArray[np.int32]:
        """The number of each row's process (fields `tgid`, `process_start_ns`), -1 where it is not tracked."""
        if not len(rows) or not len(self._tgids):
            return np.full(len(rows), -1, np.int32)
        tgids, starts = rows["tgid"], rows["process_start_ns"]
        if bool((tgids == tgids[0]).all() and (starts == starts[0]).all()):
            only = self.tracked.get(ProcessKey(int(tgids[0]), int(starts[0])))
            return np.broadcast_to(np.int32(-1 if only is None else only.number), len(rows))
        numbers = np.full(len(rows), -1, np.int32)
        first = np.searchsorted(self._tgids, tgids)
        # A pid that was reused stands there more than once.
        for step in range(self._most_of_one_tgid()):
            place = np.minimum(first + step, len(self._tgids) - 1)
            same = (self._tgids[place] == tgids) & (self._starts[place] == starts)
            numbers[same] = self._numbers[place][same]
        return numbers

    def unknown_among(self, rows: NDArray[np.void]) -> list[ProcessKey]:
        """Whose rows these are, of those that are not tracked."""
        if not (self.numbers_of(rows) < 0).any():
            return []
        pairs = np.unique(rows[["tgid", "process_start_ns"]]).tolist()
        return [key for key in (ProcessKey(*pair) for pair in pairs) if key not in self.tracked]

    def ended_among(self, keys: Iterable[ProcessKey]) -> list[Tracked]:
        """Those of the tracked ones that have ended."""
        found = (self.tracked.get(key) for key in keys)
        return [each for each in found if each is not None and each.has_ended]

    def note_last(self, rows: NDArray[np.void], numbers: NDArray[np.int32], until_ns: int) -> None:
        """Executions of these processes were delivered. A wrong time, after `until_ns`, must not keep one for ever."""
        for each in self.tracked.values():
            ends_ns = rows["end_ns"][numbers == each.number]
            last_ns = int(ends_ns[ends_ns <= until_ns].max(initial=0))
            each.last_ns = max(each.last_ns, last_ns)

    def begins(self) -> tuple[dict[ProcessKey, int], dict[ProcessKey, int]]:
        """Since when each is tracked: all, and those that are partial."""
        begins_ns = {key: each.begin_ns for key, each in self.tracked.items()}
        return begins_ns, {key: begins_ns[key] for key, t in self.tracked.items() if t.is_partial}

    def complete_ns(self) -> NDArray[np.int64]:
        """`Tracked.complete_ns` by number. Nothing more comes of those that were let go, of whom waits may be held."""
        complete = np.full(len(self.tracked) + len(self._free), FOREVER)
        for each in self.tracked.values():
            complete[each.number] = each.complete_ns
        return complete

    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By number, from when until when executions are delivered."""
        begin, end = np.full((2, len(self.complete_ns())), FOREVER)
        for each in self.tracked.values():
            begin[each.number], end[each.number] = each.begin_ns, each.end_ns
        return begin, end

    def are_partial(self) -> NDArray[np.bool_]:
        """`Tracked.is_partial` by number."""
        partial = np.zeros(len(self.complete_ns()), np.bool_)
        partial[[each.number for each in self.tracked.values() if each.is_partial]] = True
        return partial

    def _index(self) -> None:
        ordered = sorted(self.tracked.values(), key=lambda t: (t.key.tgid, t.key.start_ns))
        self._tgids = np.array([t.key.tgid for t in ordered], np.uint32)
        self._starts = np.array([t.key.start_ns for t in ordered], np.uint64)
        self._numbers = np.array([t.number for t in ordered], np.int32)

    def _most_of_one_tgid(self) -> int:
        _, counts = np.unique(self._tgids, return_counts=True)
        return int(counts.max(initial=0))
