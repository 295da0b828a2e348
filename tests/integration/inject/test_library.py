# SPDX-License-Identifier: Apache-2.0
"""The library itself: what it needs, what it offers, what it never does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tests.integration.inject.session import session

pytestmark = pytest.mark.inject

ALLOCATION = {"malloc", "calloc", "realloc", "free", "aligned_alloc", "mmap64"}


def symbols(library: Path, *, defined: bool) -> set[str]:
    """Dynamic symbols that the library has, or needs."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
        }


def test_needs_only_libc_as_of_glibc_2_17(library: Path) -> None:
    """It goes into old application images, whatever host it was linked on."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(s for s in elf.iter_sections() if isinstance(s, DynamicSection))
        needed = [getattr(tag, "needed", "") for tag in dynamic.iter_tags("DT_NEEDED")]
        versions = {
            auxiliary.name
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions()
            for auxiliary in auxiliaries
        }
    assert needed == ["libc.so.6"]
    numbers = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)[.\d]*", version) for version in versions]
    assert all(numbers)
    assert all((int(n[1]), int(n[2])) <= (2, 17) for n in numbers if n)


def test_offers_the_entry_point_only(library: Path) -> None:
    """No name of ours can meet one of the program's."""
    assert symbols(library, defined=True) == {"InitializeInjection"}


def test_never_allocates_from_the_programs_heap(library: Path) -> None:
    """Nothing is taken from an allocator that may be the program's own."""
    assert not symbols(library, defined=False) & ALLOCATION


def test_never_subscribes(library: Path) -> None:
    """A v1 subscriber would keep torch.profiler out."""
    assert b"cuptiSubscribe" not in library.read_bytes()


def test_keeps_low_descriptors_free(library: Path) -> None:
    """Programs count on getting the lowest number."""
    with session(library) as target:
        numbers = [
            int(link.name)
            for link in Path(f"/proc/{target.pid}/fd").iterdir()
            if "otel_gpuflame" in str(link.readlink())
        ]
    assert len(numbers) == 1
    assert numbers[0] >= 200
