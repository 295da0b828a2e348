# SPDX-License-Identifier: Apache-2.0
"""Which code of a file has unwind information, by the file's own index: for judging walks, apart from our tables."""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path
from typing import Final

from elftools.elf.elffile import ELFFile

from otel_gpuflame.symbolize.maps import AddressMap

_HEAD: Final = struct.Struct("<4BiI")
_ENCODINGS: Final = (1, 0x1B, 0x03, 0x3B)
"""Version 1; 4 bytes each, relative to themselves, as they are, and relative to the index. All linkers write these."""
_FDE: Final = struct.Struct("<IIiI")


class DescribedCode:
    """Functions with an entry in `.eh_frame`, of one x86-64 file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            elf = ELFFile(file)
            loads = [s.header for s in elf.iter_segments("PT_LOAD")]
            index, frames = (elf.get_section_by_name(f".eh_frame{end}") for end in ("_hdr", ""))
            self._frames_at, self._frames = frames["sh_addr"], frames.data()
            at, data = index["sh_addr"], index.data()
        self._segments = [(s.p_offset, s.p_filesz, s.p_vaddr) for s in loads]
        *encodings, _frames, count = _HEAD.unpack_from(data)
        assert tuple(encodings) == _ENCODINGS, path
        rows = struct.iter_unpack("<ii", data[_HEAD.size : _HEAD.size + 8 * count])
        self._entries = [(at + start, at + entry) for start, entry in rows]

    def has(self, offset: int) -> bool:
        """Whether the code at this offset of the file belongs to one of them."""
        address = next(v + offset - o for o, size, v in self._segments if o <= offset < o + size)
        row = bisect_right(self._entries, (address, 1 << 64)) - 1
        if row < 0:
            return False
        start, entry = self._entries[row]
        *_head, size = _FDE.unpack_from(self._frames, entry - self._frames_at)
        return start <= address < start + size


class DescribedProcess:
    """The same for addresses of a process."""

    def __init__(self, maps: AddressMap) -> None:
        self._maps = maps
        self._files: dict[str, DescribedCode] = {}

    def has(self, address: int) -> bool:
        """Whether the code at `address` has unwind information."""
        mapping = self._maps.find(address)
        if mapping is None or not mapping.is_file:
            return False
        if mapping.path not in self._files:
            self._files[mapping.path] = DescribedCode(Path(mapping.path))
        return self._files[mapping.path].has(address - mapping.start + mapping.offset)
