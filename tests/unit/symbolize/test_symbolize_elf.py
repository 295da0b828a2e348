"""ELF files: real ones, built here, and damaged ones."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.elf import (
    EM_X86_64,
    ET_DYN,
    PF_X,
    PT_LOAD,
    ElfError,
    ElfHeaders,
    MemoryBytes,
    Segment,
    read_headers,
)
from otel_gpuflame.symbolize.elf_files import ElfFile
from otel_gpuflame.symbolize.elf_symbols import STT_TLS

SOURCE = """
__thread int thread_local_one = 1;
int data_one = 1;
extern int outside(int);
static int __attribute__((noinline)) hidden(int x) { return x * 3 + data_one; }
int exported(int x) { return hidden(x) + outside(x); }
int weak_name(int x) __attribute__((weak, alias("exported")));
__asm__(".globl unsized\\n.type unsized, @function\\nunsized: ret\\n ret\\n");
"""
SHARED = ("-shared", "-fPIC")


@pytest.fixture(scope="module")
def library(build: Callable[..., Path]) -> Path:
    """A shared library with functions, data, TLS and a build id."""
    return build("libsample.so", SOURCE, *SHARED, "-Wl,--build-id=0x0123456789abcdef")


def _symbols(path: Path) -> dict[str, tuple[int, int]]:
    """Address and size by name, according to nm."""
    listing = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return {row[-1]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}


def _open(path: Path) -> ElfFile:
    return ElfFile(MemoryBytes(path.read_bytes()))


def test_functions_are_found_from_first_to_last_byte(library: Path) -> None:
    """Static functions too, and the byte after the end belongs to no function."""
    functions = _open(library).functions
    symbols = _symbols(library)
    address, size = symbols["hidden"]
    assert functions.name_at(address) == "hidden"
    assert functions.name_at(address + size - 1) == "hidden"
    assert functions.name_at(address - 1) != "hidden"
    assert functions.name_at(address + size) != "hidden"


def test_a_global_name_is_preferred_to_its_weak_alias(library: Path) -> None:
    """Two names for an address: the one that callers know."""
    functions = _open(library).functions
    assert functions.name_at(_symbols(library)["exported"][0]) == "exported"


def test_a_function_without_size_reaches_to_the_next(library: Path) -> None:
    """Assembler functions often have no size."""
    listing = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout
    at = next(int(line.split()[0], 16) for line in listing.splitlines() if "unsized" in line)
    assert _open(library).functions.name_at(at + 1) == "unsized"


@pytest.mark.parametrize("hash_style", ["gnu", "sysv", "both"])
def test_exported_symbols_are_found_by_name(build: Callable[..., Path], hash_style: str) -> None:
    """With the hash table or by scanning; undefined and hidden ones are not exported."""
    path = build("libhash.so", SOURCE, *SHARED, f"-Wl,--hash-style={hash_style}")
    file = _open(path)
    symbols = _symbols(path)
    for name in ("exported", "weak_name", "data_one"):
        found = file.dynamic_symbol(name)
        assert found is not None
        assert (found.value, found.size) == symbols[name]
    thread_local = file.dynamic_symbol("thread_local_one")
    assert thread_local is not None
    assert thread_local.type == STT_TLS
    for name in ("hidden", "outside", "absent", "ported", ""):
        assert file.dynamic_symbol(name) is None


def test_the_full_table_has_what_is_not_exported(library: Path) -> None:
    """`symbol` also finds static functions."""
    found = _open(library).symbol("hidden")
    assert found is not None
    assert found.value == _symbols(library)["hidden"][0]


def test_a_stripped_library_has_its_exported_functions(
    build: Callable[..., Path], library: Path
) -> None:
    """Without .symtab the dynamic table is used, and gaps between its functions stay nameless."""
    stripped = _open(build("libstripped.so", SOURCE, *SHARED, "-s"))
    symbols = _symbols(library)
    assert stripped.functions.name_at(symbols["exported"][0]) == "exported"
    assert stripped.functions.name_at(symbols["hidden"][0]) is None


def test_the_build_id_is_that_of_the_linker(build: Callable[..., Path], library: Path) -> None:
    """Lower-case hex, and empty where the file has none."""
    assert _open(library).headers.build_id == "0123456789abcdef"
    without = build("libwithout.so", SOURCE, *SHARED, "-Wl,--build-id=none")
    assert _open(without).headers.build_id == ""


def test_file_offsets_become_addresses_through_the_code_segment(
    build: Callable[..., Path],
) -> None:
    """Also where code lies at other addresses than its offsets, as in fixed programs."""
    program = build(
        "fixed", "int main(void) { return 0; }", "-no-pie", "-Wl,-Ttext-segment=0x10000000"
    )
    file = _open(program)
    address = _symbols(program)["main"][0]
    offset = address - 0x10000000
    assert file.headers.address_of(offset) == address
    assert file.headers.address_of(0) is None
    assert file.headers.bias_of(0x10000000 + (offset & -4096), offset & -4096) == 0


def test_a_segment_that_starts_inside_a_page_is_mapped_from_the_page() -> None:
    """Other linkers do not align code in the file: the kernel maps whole pages."""
    code = Segment(PT_LOAD, PF_X, 0x1750, 0x2750, 0x500, 0x500, 0x1000)
    headers = ElfHeaders(ET_DYN, EM_X86_64, (code,), (), "")
    assert headers.bias_of(0x7F0000001000, 0x1000) == 0x7F0000001000 - 0x2000
    assert headers.address_of(0x1750) == 0x2750
    assert headers.address_of(0x1C4F) == 0x2C4F
    assert headers.address_of(0x1C50) is None


def test_symbols_that_share_hash_buckets_are_all_found(build: Callable[..., Path]) -> None:
    """Each of 500 functions, wherever it stands in its chain, and none that is not there."""
    names = [f"function_{number}" for number in range(500)]
    source = "\n".join(f"void {name}(void) {{}}" for name in names)
    file = _open(build("libmany.so", source, *SHARED, "-Wl,--hash-style=gnu"))
    assert all(file.dynamic_symbol(name) for name in names)
    assert not any(file.dynamic_symbol(f"{name}_") for name in names)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an ELF file"),
        (b"#!/bin/sh\n" * 20, "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(100), "not a 64-bit little-endian"),
        (b"\x7fELF\x02\x02" + bytes(100), "not a 64-bit little-endian"),
        (b"\x7fELF\x02\x01" + bytes(100), "neither an ELF program"),
    ],
)
def test_other_files_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    """The message says what the file is not."""
    with pytest.raises(ElfError, match=reason):
        read_headers(MemoryBytes(data))


def test_a_file_cut_short_is_refused_or_has_fewer_names(library: Path) -> None:
    """At every length: an `ElfError`, or answers, never another exception."""
    data = library.read_bytes()
    refused = 0
    for length in range(0, len(data), 97):
        try:
            file = ElfFile(MemoryBytes(data[:length]))
        except ElfError:
            refused += 1
            continue
        _ask_everything(file)
    assert refused > 100


@given(st.integers(0, 1 << 32))
def test_a_damaged_file_is_refused_or_answers(library: Path, seed: int) -> None:
    """Random bytes overwritten in headers and tables: an `ElfError`, or answers."""
    noise = random.Random(seed)
    data = bytearray(library.read_bytes())
    table = int.from_bytes(data[40:48], "little")
    for _ in range(noise.randrange(1, 12)):
        start = noise.choice(
            [0, 64, table, table + 64 * noise.randrange(30), noise.randrange(len(data))]
        )
        at = min(start + noise.randrange(64), len(data) - 1)
        data[at] = noise.choice([0, 1, 0x7F, 0x80, 0xFF, noise.randrange(256)])
    try:
        file = ElfFile(MemoryBytes(bytes(data)))
    except ElfError:
        return
    _ask_everything(file)


@given(st.binary(max_size=500))
def test_any_bytes_after_the_magic_are_refused_or_answer(data: bytes) -> None:
    """Hostile headers: an `ElfError`, or answers."""
    try:
        file = ElfFile(MemoryBytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + data))
    except ElfError:
        return
    _ask_everything(file)


def _ask_everything(file: ElfFile) -> None:
    for address in (0, 0x1000, 0x1119, (1 << 64) - 1, 1 << 64):
        name = file.functions.name_at(address)
        assert name is None or name
        file.headers.address_of(address)
        file.headers.bias_of(0x7F0000000000, address)
    for name in ("exported", "absent"):
        found = file.symbol(name)
        assert found is None or found.value >= 0
