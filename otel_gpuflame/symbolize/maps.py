"""Executable mappings of a process, from the text of /proc/PID/maps."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_MAPS_BYTES = 32 << 20
"""The kernel's default of 65,530 mappings needs about 8 MiB; paths may be long."""
MAX_MAPPINGS = 1 << 17
MAX_SEARCHED_FILES = 1 << 10
"""Of one process, in one look for a symbol. A PyTorch process maps 109; a process may map 65,530, each up to 0.2 s of
work."""

_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-])[ps] ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20})[ \t]*(.*)"
)
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One executable mapping: [start, end) shows the file from byte `offset` on.

    `path` is without the kernel's " (deleted)"; `text` is how the kernel wrote the range, which
    names map_files.
    """

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str
    deleted: bool
    text: str

    @property
    def is_file(self) -> bool:
        """Whether there is a file behind the mapping, with or without a name in the file system."""
        return self.inode != 0 and self.path != ""

    @property
    def is_uprobes(self) -> bool:
        """The kernel's page of uprobe slots: addresses in it replace return addresses, or are
        copies of code.
        """
        return self.path == "[uprobes]"

    @property
    def is_kernel_page(self) -> bool:
        """[vdso], [vsyscall], [uprobes]: code that the kernel put there."""
        return self.inode == 0 and self.path in ("[vdso]", "[vsyscall]", "[uprobes]")

    @property
    def file_identity(self) -> tuple[str, int, str]:
        """Equal for all mappings of the same file in one process."""
        return self.device, self.inode, self.path


class AddressMap:
    """Finds the executable mapping that holds an address."""

    def __init__(self, mappings: Iterable[Mapping]) -> None:
        self.mappings: tuple[Mapping, ...] = tuple(sorted(mappings, key=lambda each: each.start))
        self._starts = [each.start for each in self.mappings]

    def find(self, address: int) -> Mapping | None:
        """The mapping with start <= address < end."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        mapping = self.mappings[index]
        return mapping if address < mapping.end else None


def parse_maps(text: bytes) -> list[Mapping]:
    """Executable mappings in file order. Lines that are not understood are skipped; at most
    `MAX_MAPPINGS` are kept.
    """
    mappings: list[Mapping] = []
    for line in text.split(b"\n"):
        mapping = _parse_line(line)
        if mapping is not None:
            mappings.append(mapping)
            if len(mappings) == MAX_MAPPINGS:
                break
    return mappings


def read_maps(pid: int, proc: Path) -> AddressMap | None:
    """The executable mappings of a live process; None where it is gone or must not be read."""
    try:
        with (proc / str(pid) / "maps").open("rb") as file:
            text = file.read(MAX_MAPS_BYTES)
    except OSError:
        return None
    return AddressMap(parse_maps(text))


def _parse_line(line: bytes) -> Mapping | None:
    match = _LINE.fullmatch(line)
    if match is None or match[3][2:3] != b"x":
        return None
    start, end, offset = int(match[1], 16), int(match[2], 16), int(match[4], 16)
    if start >= end:
        return None
    # The kernel writes a newline in a path as \012 and leaves everything else as it is.
    path = match[7].decode("utf-8", "surrogateescape").replace("\\012", "\n")
    return Mapping(
        start=start,
        end=end,
        offset=offset,
        device=match[5].decode("ascii"),
        inode=int(match[6]),
        path=path.removesuffix(_DELETED),
        deleted=path.endswith(_DELETED),
        text=f"{start:x}-{end:x}",
    )
