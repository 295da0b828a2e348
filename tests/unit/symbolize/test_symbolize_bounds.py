"""Files that were made to keep their reader busy: what they cost is bounded, whatever they hold."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.symbolize.cpython.detect import find_python
from otel_gpuflame.symbolize.elf import SHT_DYNSYM, SHT_RELA, SHT_SYMTAB, MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles
from otel_gpuflame.symbolize.elf_symbols import MAX_PLACES, STT_FUNC, STT_TLS, SYMBOL
from otel_gpuflame.symbolize.maps import MAX_SEARCHED_FILES, Mapping
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.thread_context import MAX_SLOTS, SYMBOL_NAME, find_thread_context
from tests.unit.symbolize.elf_image import elf_image

PID = 77
NAME = SYMBOL_NAME.encode() + b"\0"
RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
BOUND_S = 2.0
"""Each takes some 0.1 s; without a bound minutes."""


def symbols(count: int, kind: int, name: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Defined symbols of one name."""
    rows = np.zeros(count, SYMBOL)
    rows["info"], rows["section"], rows["value"], rows["name"] = kind, 1, 0x1000, name
    return rows


@pytest.mark.parametrize("table", [SHT_DYNSYM, SHT_SYMTAB])
def test_a_name_that_is_there_a_hundred_thousand_times_is_not_looked_for(table: int) -> None:
    """No linker writes it twice; each would be compared with a million symbols."""
    rows = symbols(1 << 20, STT_TLS)
    file = ElfFile(MemoryBytes(elf_image(b"\0" + NAME * 100_000, (table, rows.tobytes()))))
    begin_s = time.process_time()
    assert file.symbol(SYMBOL_NAME) is None
    assert time.process_time() - begin_s < BOUND_S


def test_a_name_that_ends_others_is_found() -> None:
    """Linkers keep a name as the end of longer ones, where it may stand as often as they."""
    text = b"\0" + b"".join(b"%d_" % number + NAME for number in range(MAX_PLACES))
    rows = symbols(3, STT_TLS)
    rows["name"][2] = text.rindex(NAME)
    file = ElfFile(MemoryBytes(elf_image(text, (SHT_DYNSYM, rows.tobytes()))))
    found = file.dynamic_symbol(SYMBOL_NAME)
    assert found is not None
    assert found.number == 2


def test_of_many_symbol_tables_the_first_is_read() -> None:
    """ELF allows one; 60,000 headers for the same 2.4 MB would have it read as often."""
    rows = symbols(100_000, STT_TLS)
    text = b"\0" + NAME
    file = ElfFile(MemoryBytes(elf_image(text, (SHT_SYMTAB, rows.tobytes()), repeated=60_000)))
    begin_s = time.process_time()
    assert file.symbol(SYMBOL_NAME) is None
    assert len(file.functions) == 0
    assert time.process_time() - begin_s < BOUND_S


def test_functions_of_many_symbol_tables_are_those_of_the_first() -> None:
    """An ordinary file has its functions as before."""
    file = ElfFile(
        MemoryBytes(
            elf_image(b"\0" + NAME, (SHT_SYMTAB, symbols(1, STT_FUNC, 1).tobytes()), repeated=2)
        )
    )
    assert file.functions.name_at(0x1000) == SYMBOL_NAME


def _fake_process(proc: Path, image: bytes) -> None:
    (proc / str(PID) / "root").mkdir(parents=True)
    path = proc / str(PID) / "root" / "library"
    path.write_bytes(image)
    line = f"400000-800000 r-xp 00000000 08:02 {path.stat().st_ino} /library\n"
    (proc / str(PID) / "maps").write_text(line)
    (proc / str(PID) / "mem").write_bytes(bytes(4096))


@pytest.mark.parametrize("repeated", [1, 30_000])
def test_words_of_the_got_that_are_read_are_few(
    repeated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linker makes one for each model of TLS; a table may say a hundred thousand, thirty thousand times."""
    slots = np.zeros(100_000, RELA)
    slots["type"], slots["symbol"] = 18, 1
    rows = symbols(2, STT_TLS, 1)
    rows["name"][0] = 0
    sections = ((SHT_DYNSYM, rows.tobytes()), (SHT_RELA, slots.tobytes()))
    _fake_process(tmp_path, elf_image(b"\0" + NAME, *sections, repeated=repeated))
    read: list[int] = []
    monkeypatch.setattr(ProcessMemory, "u64", lambda _, address: read.append(address))
    begin_s = time.process_time()
    assert find_thread_context(PID, tmp_path) is None
    assert time.process_time() - begin_s < BOUND_S
    assert 0 < len(read) <= MAX_SLOTS


def test_files_that_are_searched_in_one_look_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look goes on with the others, so that the one that has it is found in the end."""
    count = MAX_SEARCHED_FILES + 10
    lines = [f"{n:x}000-{n + 1:x}000 r-xp 0 08:02 {n} /lib{n}\n" for n in range(1, count + 1)]
    (tmp_path / str(PID)).mkdir()
    (tmp_path / str(PID) / "maps").write_text("".join(lines))
    opened: list[str] = []

    def note(_files: ElfFiles, _pid: int, mapping: Mapping, _proc: Path) -> None:
        opened.append(mapping.path)

    monkeypatch.setattr(ElfFiles, "open", note)
    without: set[tuple[str, int, str]] = set()
    assert find_thread_context(PID, tmp_path, ElfFiles(), without) is None
    assert len(opened) == MAX_SEARCHED_FILES
    assert find_thread_context(PID, tmp_path, ElfFiles(), without) is None
    assert len(opened) == len(set(opened)) == count
    opened.clear()
    find_python(PID, tmp_path)
    assert len(opened) == MAX_SEARCHED_FILES
