"""Rows that wait for their time to come: each is looked at once when it arrives, and once when it is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.rows import concatenate

Rows = NDArray[np.void]
Numbers = NDArray[np.int32]

_NO_KEYS: Final = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Part:
    """A batch, or what is left of one. `keys` are whatever whoever added it wants to have at hand."""

    rows: Rows
    numbers: Numbers
    due_ns: NDArray[np.int64]
    keys: NDArray[np.uint64]
    first_ns: int
    last_ns: int
    open_ns: dict[int, int]
    """See `Backlog.open_ns`."""


@dataclass(slots=True)
class Backlog:
    """Rows of one dtype with the number of their process, taken out by time.

    Batches are kept as they came: nearly all of them are due as a whole, and need not be copied to find that out.
    """

    dtype: np.dtype[Any]
    parts: list[Part] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        rows: Rows,
        numbers: Numbers,
        due_ns: NDArray[np.int64],
        keys: NDArray[np.uint64] = _NO_KEYS,
    ) -> None:
        """`rows` are kept, not copied."""
        if len(rows):
            self.parts.append(_part(rows, numbers, due_ns, keys))
            self.count += len(rows)

    def take(self, until_ns: int) -> list[Part]:
        """Rows that are due by `until_ns`, in the order of their arrival; the others stay."""
        due, rest = [], []
        for part in self.parts:
            if part.last_ns <= until_ns:
                due.append(part)
            elif part.first_ns > until_ns:
                rest.append(part)
            else:
                _split(part, until_ns, due, rest)
        self.parts = rest
        self.count = sum(len(part.rows) for part in rest)
        return due

    def take_rows(self, until_ns: int) -> Rows:
        """The same as one array, without the processes."""
        return concatenate([part.rows for part in self.take(until_ns)], self.dtype)

    def drop(self, number: int) -> int:
        """Forget the rows of a process; how many those were."""
        before = self.count
        kept = []
        for part in self.parts:
            is_kept = part.numbers != number
            if is_kept.any():
                kept.append(part if is_kept.all() else _selected(part, is_kept))
        self.parts = kept
        self.count = sum(len(part.rows) for part in kept)
        return before - self.count

    def open_ns(self) -> dict[int, int]:
        """By device, the earliest start of a row; of rows that have `device` and `start_ns`."""
        found: dict[int, int] = {}
        for part in self.parts:
            for device, start_ns in part.open_ns.items():
                found[device] = min(start_ns, found.get(device, start_ns))
        return found

    def cuts_ns(self, until_ns: int, size: int) -> list[int]:
        """Times before `until_ns`, in order and evenly spaced, that cut what is due by then into pieces.

        If rows come evenly, these have `size` rows or less.
        """
        if self.count <= size:
            return []
        first_ns = min(part.first_ns for part in self.parts)
        last_ns = min(until_ns, self.last_ns())
        due = sum(
            len(part.rows)
            if part.last_ns <= until_ns
            else int(np.count_nonzero(part.due_ns <= until_ns))
            for part in self.parts
        )
        pieces = min(-(-due // size), max(last_ns - first_ns, 1))
        return [first_ns + (last_ns - first_ns) * piece // pieces for piece in range(1, pieces)]

    def last_ns(self, number: int | None = None) -> int:
        """When the last row is due (of a process); 0 where there is none."""
        if number is None:
            return max((part.last_ns for part in self.parts), default=0)
        due_ns = [part.due_ns[part.numbers == number] for part in self.parts]
        return max((int(each.max(initial=0)) for each in due_ns), default=0)

    def middle_ns(self) -> int:
        """The time by which half of the rows are due. There must be rows."""
        return int(np.median(np.concatenate([part.due_ns for part in self.parts])))


def numbers_of(parts: list[Part]) -> Numbers:
    """The process numbers of several parts."""
    return np.concatenate([np.empty(0, np.int32), *(part.numbers for part in parts)])


def due_of(parts: list[Part]) -> NDArray[np.int64]:
    """The times of several parts."""
    return np.concatenate([np.empty(0, np.int64), *(part.due_ns for part in parts)])


def keys_of(parts: list[Part]) -> NDArray[np.uint64]:
    """The keys of several parts."""
    return np.concatenate([_NO_KEYS, *(part.keys for part in parts)])


def _part(
    rows: Rows, numbers: Numbers, due_ns: NDArray[np.int64], keys: NDArray[np.uint64]
) -> Part:
    first_ns, last_ns = int(due_ns.min()), int(due_ns.max())
    return Part(rows, numbers, due_ns, keys, first_ns, last_ns, _earliest(rows))


def _earliest(rows: Rows) -> dict[int, int]:
    if "device" not in (rows.dtype.names or ()):
        return {}
    devices, starts_ns = rows["device"], rows["start_ns"]
    if bool((devices == devices[0]).all()):
        return {int(devices[0]): int(starts_ns.min())}
    return {n: int(starts_ns[devices == n].min()) for n in np.unique(devices).tolist()}


def _split(part: Part, until_ns: int, due: list[Part], rest: list[Part]) -> None:
    """Add what is due of a part to `due`, and the others to `rest`.

    Rows come nearly in order of time: only between the first that is not due and the last that is there is a choice.
    """
    is_due = part.due_ns <= until_ns
    first = int(np.argmin(is_due))
    past = len(is_due) - int(np.argmax(is_due[::-1]))
    due.extend(_sliced(part, slice(0, first)))
    if past > first:
        middle = _sliced(part, slice(first, past))[0]
        due.append(_selected(middle, is_due[first:past]))
        rest.append(_selected(middle, ~is_due[first:past]))
    rest.extend(_sliced(part, slice(max(first, past), len(is_due))))


def _sliced(part: Part, which: slice) -> list[Part]:
    if which.start >= which.stop:
        return []
    keys = part.keys[which] if len(part.keys) else part.keys
    return [_part(part.rows[which], part.numbers[which], part.due_ns[which], keys)]


def _selected(part: Part, chosen: NDArray[np.bool_]) -> Part:
    # numpy.take, since indexing with a mask copies records field by field.
    places = np.flatnonzero(chosen)
    keys = part.keys.take(places) if len(part.keys) else part.keys
    columns = (part.rows.take(places), part.numbers.take(places), part.due_ns.take(places))
    return _part(*columns, keys)
