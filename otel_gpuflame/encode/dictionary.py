"""Interning: the tables of distinct strings, functions, locations and stacks that OTLP and pprof
have in common.

Both formats number such things and reserve the number 0: in OTLP index 0 of every table is the zero
element, in pprof id 0 means "none" (and string 0 is empty). One numbering therefore serves both.
What each format writes for an entry is the encoder's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.profile.model import Bundle

K = TypeVar("K")

UNSEEN = -1


class Table(Generic[K]):
    """Distinct keys in order of first use. Index 0 is the zero element, present from the start."""

    __slots__ = ("_index",)

    def __init__(self, zero: K) -> None:
        self._index: dict[K, int] = {zero: 0}

    def intern(self, key: K) -> int:
        """Index of `key`, added at the end if it is new."""
        return self._index.setdefault(key, len(self._index))

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[K]:
        """All keys by index, the zero element first."""
        return iter(self._index)

    def used(self) -> Iterator[tuple[int, K]]:
        """(index, key) of everything but the zero element."""
        return ((index, key) for key, index in self._index.items() if index)


class MappingKey(NamedTuple):
    """A mapped file: string index of its path, and its build id in hex ("" where unknown)."""

    file: int
    build_id: str


class FunctionKey(NamedTuple):
    """String indexes of what names a function. `system_name` is 0 where it is the same as the name.

    pprof takes equal names for mangled ones, "demangles" them and thereby empties `<module>`, the
    frame at the root of every Python stack; a name without a system name it leaves alone.
    """

    name: int
    system_name: int
    file: int


class LocationKey(NamedTuple):
    """A place in code. `function` 0 means that nothing is known but the address."""

    mapping: int
    address: int
    function: int
    line: int
    frame_type: str


class Dictionary:
    """The tables that describe stacks, filled by interning and read by an encoder at the end."""

    __slots__ = ("functions", "locations", "mappings", "stacks", "strings")

    def __init__(self) -> None:
        self.strings: Table[str] = Table("")
        self.mappings: Table[MappingKey] = Table(MappingKey(0, ""))
        self.functions: Table[FunctionKey] = Table(FunctionKey(0, 0, 0))
        self.locations: Table[LocationKey] = Table(LocationKey(0, 0, 0, 0, ""))
        self.stacks: Table[tuple[int, ...]] = Table(())

    def string(self, text: str) -> int:
        """Index of `text`, made valid UTF-8 first."""
        return self.strings.intern(text if text.isascii() else valid_text(text))

    def mapping(self, path: str, build_id: str) -> int:
        """Index of the mapped file `path`; 0 where there is neither a path nor a build id."""
        return self.mappings.intern(MappingKey(self.string(path), build_id))

    def location(self, frame: Frame, frame_type: str) -> int:
        """Index of the place that `frame` names."""
        name = display_name(frame)
        function = FunctionKey(
            self.string(name),
            self.string("" if frame.system_name == name else frame.system_name),
            self.string(frame.file),
        )
        return self.locations.intern(
            LocationKey(
                self.mapping(frame.module, frame.build_id),
                frame.address & 0xFFFF_FFFF_FFFF_FFFF,
                self.functions.intern(function),
                max(frame.line, 0),
                frame_type,
            )
        )

    def add_stacks(
        self,
        bundle: Bundle,
        used: NDArray[np.bool_],
        location_of: Callable[[Frame], int],
    ) -> NDArray[np.int64]:
        """Intern the stacks of `bundle` that `used` marks; every frame is resolved once, however
        often it occurs.

        Returns an array that maps each used stack index of the bundle to an index of `stacks`,
        `UNSEEN` elsewhere. Root-first stacks become leaf-first, as both formats want them.
        """
        numbers = np.full(len(bundle.stacks), UNSEEN, dtype=np.int64)
        wanted = [int(index) for index in np.flatnonzero(used)]
        locations = _locations(bundle, [bundle.stacks[index] for index in wanted], location_of)
        for index in wanted:
            leaf_first = tuple([locations[frame] for frame in reversed(bundle.stacks[index])])
            numbers[index] = self.stacks.intern(leaf_first)
        return numbers


def _locations(
    bundle: Bundle, stacks: Sequence[tuple[int, ...]], location_of: Callable[[Frame], int]
) -> list[int]:
    locations = [UNSEEN] * len(bundle.frames)
    for frame in dict.fromkeys(chain.from_iterable(stacks)):
        locations[frame] = location_of(bundle.frames[frame])
    return locations


def used_entries(length: int, columns: Iterable[NDArray[np.int32]]) -> NDArray[np.bool_]:
    """Mask over a table of `length` entries: True where any of `columns` refers to it (-1 refers to
    nothing).
    """
    used = np.zeros(length, dtype=np.bool_)
    for column in columns:
        used[column[column >= 0]] = True
    return used


def display_name(frame: Frame) -> str:
    """What to call `frame`: never empty, since a nameless function is invalid in OTLP and
    unreadable everywhere.
    """
    if frame.name or frame.system_name:
        return frame.name or frame.system_name
    if frame.module:
        return f"{frame.module.rsplit('/', 1)[-1]}+{frame.address:#x}"
    return f"{frame.address:#x}" if frame.address else "[unknown]"


def valid_text(text: str) -> str:
    r"""`text` as valid UTF-8; a byte that was none (a lone surrogate, as in paths) shows as
    `\udcxx`.
    """
    return text.encode("utf-8", "backslashreplace").decode()
