"""Names of kernels in a region: entries that only ever grow in number, each a size and as many characters."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.cupti.errors import MalformedError
from otel_gpuflame.events.wire_gpu import Limit

_ALIGNMENT: Final = 4
_HEADER_BYTES: Final = 4


class NameEntries:
    """Where entries begin. Entries are taken in order, so that nothing else can pass for one, and all names
    together are no larger than their part of the region.
    """

    def __init__(self, names_bytes: int) -> None:
        self.head = 0
        """Bytes taken in."""
        self._begins = np.zeros(names_bytes // _ALIGNMENT + 1, bool)

    def take(self, data: bytes) -> list[tuple[int, str]]:
        """(offset, name) of each entry of `data`, the bytes from `head` on. Raises MalformedError."""
        if len(data) % _ALIGNMENT:
            raise MalformedError(f"{len(data)} bytes of names, which are padded to {_ALIGNMENT}")
        found = []
        position = 0
        while position < len(data):
            begin = position + _HEADER_BYTES
            size_bytes = int.from_bytes(data[position:begin], "little")
            if not 0 < size_bytes <= Limit.MAX_NAME_BYTES or begin + size_bytes > len(data):
                raise MalformedError(f"a name of {size_bytes} bytes")
            offset = self.head + position
            name = data[begin : begin + size_bytes].decode("utf-8", "backslashreplace")
            found.append((offset, name))
            position = -(-(begin + size_bytes) // _ALIGNMENT) * _ALIGNMENT
        for offset, _ in found:
            self._begins[offset // _ALIGNMENT] = True
        self.head += len(data)
        return found

    def are_known(self, names: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether each of these, 1 + the offset of an entry, refers to one."""
        offsets = names - np.uint32(1)
        slots = np.minimum(offsets // _ALIGNMENT, len(self._begins) - 1)
        known: NDArray[np.bool_] = (names != 0) & (offsets % _ALIGNMENT == 0) & self._begins[slots]
        return known
