"""Tables by file, shared by all processes that map it. Used by one thread."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from otel_gpuflame.symbolize.elf import ElfError
from otel_gpuflame.symbolize.elf_files import ElfFile
from otel_gpuflame.symbolize.unwind.eh_frame import EhFrame, read_eh_frame
from otel_gpuflame.symbolize.unwind.table import UnwindTable, build_table

MAX_TABLE_BYTES: Final = 256 << 20
"""In the kernel. All libraries of a PyTorch process together have 89 MB."""
UNUSED_KEPT_NS: Final = 60_000_000_000
"""A service that restarts finds its tables again."""
NO_FILE: Final = 0


class FileMaps(Protocol):
    """Where tables go: see `UnwindMaps`."""

    def put_file(self, number: int, rows: NDArray[Any]) -> None:
        """The table of a file."""

    def drop_file(self, number: int) -> None:
        """No mapping refers to this file any more."""


class FileTable(NamedTuple):
    """A table that BPF has."""

    number: int
    """Its key in BPF, never used again; NO_FILE where the file has none."""
    base: int
    """ELF address of the row at 0."""
    half: int
    """The greatest power of two below the number of rows: where a search begins."""


NO_TABLE: Final = FileTable(NO_FILE, 0, 0)


@dataclass(slots=True)
class _Shared:
    table: FileTable
    digest: bytes
    size: int
    users: int = 0
    unused_since_ns: int = 0


class UnwindFiles:
    """Equal sections share a table, whatever the file that they are in is called.

    By what the section says and not by the file's build id, which is only a claim: a process must not be able to give
    others its own idea of libc.
    """

    def __init__(self, maps: FileMaps, max_bytes: int = MAX_TABLE_BYTES) -> None:
        self._maps = maps
        self._max_bytes = max_bytes
        self.made = NO_FILE
        """Tables, so far; also the number of the last one."""
        self._tables: dict[int, _Shared] = {}
        self._numbers: dict[bytes, int] = {}
        self._digests: WeakKeyDictionary[ElfFile, bytes | None] = WeakKeyDictionary()
        self.bytes = 0
        """Of all tables in BPF."""
        self.refused = 0
        """Tables for which there was no room, so far."""
        self.malformed = 0
        """Entries of sections that contradict themselves, so far."""
        self.without = 0
        """Files without unwind information that can be used, so far."""

    def take(self, elf: ElfFile, now_ns: int) -> FileTable:
        """The table of a file, built where BPF does not have it, for one more user.

        Raises OSError where BPF refuses it, and MemoryError.
        """
        number = self._number_of(elf, now_ns)
        if number == NO_FILE:
            return NO_TABLE
        shared = self._tables[number]
        shared.users += 1
        return shared.table

    def _number_of(self, elf: ElfFile, now_ns: int) -> int:
        digest = self._digests.get(elf)
        if digest in self._numbers or (digest is None and elf in self._digests):
            return self._numbers.get(digest or b"", NO_FILE)
        # Not seen before, or freed since then.
        section = self._read(elf)
        digest = None if section is None else _digest(section)
        self._digests[elf] = digest
        if section is None or digest is None:
            return NO_FILE
        if digest not in self._numbers and not self._add(digest, section, now_ns):
            return NO_FILE
        return self._numbers[digest]

    def give_back(self, number: int, now_ns: int) -> None:
        """One user less."""
        shared = self._tables.get(number)
        if shared is not None:
            shared.users -= 1
            shared.unused_since_ns = now_ns

    def free_unused(self, now_ns: int, *, needed: int = 0) -> None:
        """Free tables that nobody has used for a while; with `needed` bytes, as many others as make room for them."""
        unused = [each for each in self._tables.values() if not each.users]
        for shared in sorted(unused, key=lambda each: each.unused_since_ns):
            lacks_room = self.bytes + needed > self._max_bytes
            if lacks_room or now_ns - shared.unused_since_ns >= UNUSED_KEPT_NS:
                self._free(shared)

    def _read(self, elf: ElfFile) -> EhFrame | None:
        try:
            return read_eh_frame(elf.data, elf.headers)
        except ElfError:
            self.without += 1
            return None

    def _add(self, digest: bytes, section: EhFrame, now_ns: int) -> bool:
        """Build a table and give it to BPF; False where there is no room for it."""
        table = build_table(section)
        self.malformed += table.counts.malformed
        size = table.rows.nbytes
        if self.bytes + size > self._max_bytes:
            self.free_unused(now_ns, needed=size)
        if self.bytes + size > self._max_bytes:
            self.refused += 1
            return False
        self.made += 1
        number = self.made
        self._maps.put_file(number, table.rows)
        self._tables[number] = _Shared(_described(number, table), digest, size)
        self._numbers[digest] = number
        self.bytes += size
        return True

    def _free(self, shared: _Shared) -> None:
        number = shared.table.number
        self._maps.drop_file(number)
        del self._tables[number], self._numbers[shared.digest]
        self.bytes -= shared.size


def _described(number: int, table: UnwindTable) -> FileTable:
    return FileTable(number, table.base, half_of(len(table.rows)))


def half_of(count: int) -> int:
    """The greatest power of two less than `count`; 0 for one."""
    return 1 << (count - 1).bit_length() - 1 if count > 1 else 0


def _digest(section: EhFrame) -> bytes:
    about = f"{section.address},{section.code_start},{section.code_end}".encode()
    return blake2b(section.data, digest_size=16, key=about).digest()
