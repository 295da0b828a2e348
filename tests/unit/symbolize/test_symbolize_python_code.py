"""Reading code objects: from this very interpreter, and from memory that holds anything."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import struct
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.symbolize.cpython.code import UNREADABLE, CodeReader
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime, find_python
from otel_gpuflame.symbolize.cpython.layouts import layout_of
from otel_gpuflame.symbolize.cpython.lines import line_310
from otel_gpuflame.symbolize.memory import ProcessMemory

PROC = Path("/proc")


@pytest.fixture(scope="module")
def runtime() -> PythonRuntime:
    """The interpreter that runs the tests."""
    found = find_python(os.getpid(), PROC)
    assert isinstance(found, PythonRuntime)
    return found


@pytest.fixture
def reader(runtime: PythonRuntime) -> CodeReader:
    """Reads from this process."""
    return CodeReader(ProcessMemory(os.getpid(), PROC), runtime)


def _instruction(runtime: PythonRuntime, code: types.CodeType, unit: int) -> int:
    if runtime.layout.instruction_is_index:
        return unit & 0xFFFFFFFF
    return id(code) + runtime.code.code_instructions + 2 * unit


def _compile(text: str, name: str = "<text>") -> types.CodeType:
    return compile(text, name, "exec")


def test_the_offsets_name_the_same_fields_as_the_interpreter(
    runtime: PythonRuntime, reader: CodeReader
) -> None:
    """Name, file and first line of a function of this test."""
    code = _compile.__code__
    frame = reader.frame(id(code), _instruction(runtime, code, -1))
    assert frame is not None
    assert (frame.name, frame.file, frame.line) == (
        "_compile",
        __file__,
        code.co_firstlineno,
    )


def test_what_is_no_code_object_is_unreadable(runtime: PythonRuntime, reader: CodeReader) -> None:
    """Another object, a small number, an unmapped address, an address out of range."""
    for address in (id(runtime), 8, 0, 1 << 55, 1 << 63, (1 << 64) - 8):
        assert reader.frame(address, address) == UNREADABLE, hex(address)


def test_a_frame_of_the_interpreter_itself_is_left_out(
    runtime: PythonRuntime, reader: CodeReader
) -> None:
    """None in place of code (3.13), and code named as the trampolines are (3.12, 3.13)."""
    assert reader.frame(id(None), 0) is None
    code = _compile.__code__
    if sys.version_info >= (3, 11):
        shim = code.replace(co_qualname="<interpreter trampoline>")
        assert reader.frame(id(shim), _instruction(runtime, shim, 0)) is None
        named = {"co_qualname": "__init__", "co_filename": "__init__"}
        shim = code.replace(**named, co_firstlineno=0)
        assert reader.frame(id(shim), _instruction(runtime, shim, 0)) is None
        real = code.replace(**named)
        assert reader.frame(id(real), _instruction(runtime, real, 0)) is not None


def test_code_without_a_name_is_called_unnamed(runtime: PythonRuntime, reader: CodeReader) -> None:
    """Its file and line are still worth showing."""
    empty = {"co_qualname": ""} if sys.version_info >= (3, 11) else {"co_name": ""}
    code = _compile("value = 1").replace(**empty)
    frame = reader.frame(id(code), _instruction(runtime, code, 0))
    assert frame is not None
    assert (frame.name, frame.file) == ("<unnamed>", "<text>")


def test_an_instruction_outside_the_code_is_unreadable(
    runtime: PythonRuntime, reader: CodeReader
) -> None:
    """Other code lived at the address when the stack was taken: its lines must not be guessed."""
    code = _compile("value = 1")
    units = len(code.co_code) // 2
    assert reader.frame(id(code), _instruction(runtime, code, units - 1)) != UNREADABLE
    for unit in (units, units + 1000, 1 << 30):
        assert reader.frame(id(code), _instruction(runtime, code, unit)) == UNREADABLE
    if not runtime.layout.instruction_is_index:
        assert reader.frame(id(code), id(code) - 64) == UNREADABLE


def test_a_reused_address_is_not_mistaken(runtime: PythonRuntime, reader: CodeReader) -> None:
    """Code objects that come and go at the same address keep their own names and files."""
    addresses: dict[int, int] = {}
    for number in range(300):
        code = _compile("\n" * (number % 7) + "value = 1", f"<file {number}>")
        frame = reader.frame(id(code), _instruction(runtime, code, len(code.co_code) // 2 - 1))
        assert frame is not None
        assert frame.file == f"<file {number}>"
        addresses[id(code)] = addresses.get(id(code), 0) + 1
        del code
        gc.collect(0)
    assert max(addresses.values()) > 1


def test_long_line_tables_are_read_and_too_long_ones_are_not(
    runtime: PythonRuntime, reader: CodeReader
) -> None:
    """Up to 1 MiB; beyond that the frame is unreadable instead of slow."""
    code = _compile("value = 1")
    long = code.replace(**_line_table(code, 1 << 20))
    frame = reader.frame(id(long), _instruction(runtime, long, 0))
    assert frame not in (None, UNREADABLE)
    too_long = code.replace(**_line_table(code, (1 << 20) + 2))
    assert reader.frame(id(too_long), _instruction(runtime, too_long, 0)) == UNREADABLE


def test_what_is_kept_of_a_process_is_bounded(
    runtime: PythonRuntime, reader: CodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old code objects are let go and read again: the answers stay the same."""
    monkeypatch.setattr("otel_gpuflame.symbolize.cpython.code.MAX_CACHED_BYTES", 5000)
    codes = [_compile("value = 1", f"<file {number}>") for number in range(20)]
    for code in codes * 2:
        frame = reader.frame(id(code), _instruction(runtime, code, 0))
        assert frame is not None
        assert frame.file == code.co_filename
        assert len(reader._codes) <= 5


def _line_table(code: types.CodeType, size: int) -> dict[str, bytes]:
    return {"co_linetable": code.co_linetable.ljust(size, b"\0")}


def test_3_10_counts_code_units_and_minus_one_is_the_first_line(runtime: PythonRuntime) -> None:
    """`f_lasti` arrives as 32 bits without sign."""
    layout = layout_of((3, 10))
    assert layout is not None
    reader = CodeReader(
        ProcessMemory(os.getpid(), PROC),
        replace(runtime, layout=layout.python, code=layout.code, code_type=0),
    )
    table, name, header = _code_object_310()
    address = ctypes.addressof(header)
    first, second, beyond = (reader.frame(address, unit) for unit in (0xFFFFFFFF, 2, 3))
    assert first == Frame(first.kind, "größe", "", "größe", 40) if first else False
    assert second is not None
    assert second.line == line_310(b"\x04\x01\x02\x05", 40, 2) == 46
    assert beyond == UNREADABLE
    del table, name


def _code_object_310() -> tuple[object, object, ctypes.Array[ctypes.c_char]]:
    """A code object as 3.10 lays it out, in this process."""
    text = "größe".encode("latin-1")
    state = 1 << 2 | 1 << 5
    name = ctypes.create_string_buffer(
        struct.pack("<QQQQI4xQQQQ", 1, 0, len(text), 0, state, 0, 0, 0, 0)[:72] + text
    )
    lines = b"\x04\x01\x02\x05"
    table = ctypes.create_string_buffer(struct.pack("<QQQQ", 1, 0, len(lines), 0) + lines)
    header = ctypes.create_string_buffer(200)
    struct.pack_into("<i", header, 40, 40)
    struct.pack_into("<QQ", header, 104, ctypes.addressof(name), ctypes.addressof(name))
    struct.pack_into("<Q", header, 120, ctypes.addressof(table))
    return table, name, header


@given(st.integers(0, 1 << 32), st.sampled_from([(3, 10), (3, 11), (3, 12), (3, 13)]))
def test_any_memory_gives_a_frame_or_a_mark(
    runtime: PythonRuntime, seed: int, version: tuple[int, int]
) -> None:
    """Noise, in which some words point back into the noise: never an exception."""
    noise = random.Random(seed)
    size = 4096
    buffer = ctypes.create_string_buffer(noise.randbytes(size), size)
    base = ctypes.addressof(buffer)
    for offset in range(0, size - 8, 8):
        choice = noise.randrange(4)
        if choice == 0:
            struct.pack_into("<Q", buffer, offset, base + noise.randrange(size))
        elif choice == 1:
            struct.pack_into("<Q", buffer, offset, noise.randrange(400))
    layout = layout_of(version)
    assert layout is not None
    reader = CodeReader(
        ProcessMemory(os.getpid(), PROC),
        replace(runtime, layout=layout.python, code=layout.code, code_type=0),
    )
    for _ in range(20):
        address = base + noise.randrange(size - 512)
        frame = reader.frame(address, address + 200 + noise.randrange(100))
        if frame is not None:
            frame.name.encode()
            frame.file.encode()
