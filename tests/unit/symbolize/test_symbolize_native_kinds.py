"""Native frames from mappings that a test cannot easily have live: a fake /proc with one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, mark
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf import MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles
from otel_gpuflame.symbolize.process import ProcessView
from otel_gpuflame.symbolize.symbolizer import Symbolizer

PID = 4711
BASE = 0x400000
SIZE = 0x10000
CUT = mark("native stack cut")
SOURCE = """
__attribute__((noinline)) static void callee(void) { __asm__ volatile(""); }
void caller(void) { callee(); __asm__ volatile(""); }
"""


@pytest.fixture(scope="module")
def image(build: Callable[..., Path]) -> bytes:
    """A small library whose file is its memory image."""
    return build("libimage.so", SOURCE, "-shared", "-fPIC", "-Wl,-z,noseparate-code").read_bytes()


@pytest.fixture(scope="module")
def return_offset(image: bytes) -> int:
    """Where the call in `caller` returns to."""
    functions = ElfFile(MemoryBytes(image)).functions
    starts = [at for at in range(0x100, len(image)) if functions.name_at(at) == "caller"]
    call = image.index(b"\xe8", starts[0], starts[-1])
    return call + 5


@pytest.fixture
def resolve(
    tmp_path: Path, image: bytes, return_offset: int, raw_stack: Any
) -> Callable[[str], tuple[Frame, ...]]:
    """Frames of a stack with that return address, from a mapping that the kernel describes so."""

    def run(
        description: str,
        file: bytes | None = None,
        *,
        deleted: bool = False,
        memory: bytes | None = image,
        imposter: bytes | None = None,
    ) -> tuple[Frame, ...]:
        process = tmp_path / str(PID)
        (process / "root").mkdir(parents=True)
        (process / "map_files").mkdir()
        (process / "stat").write_text(f"{PID} (x) S " + " ".join(["0"] * 40))
        inode = 0
        if file is not None:
            path = process / "root" / "file"
            if deleted:
                path = process / "map_files" / f"{BASE:x}-{BASE + SIZE:x}"
            path.write_bytes(file)
            inode = path.stat().st_ino
        if imposter is not None:
            (process / "root" / "file").write_bytes(imposter)
        (process / "maps").write_text(
            f"{BASE:x}-{BASE + SIZE:x} r-xp 00000000 08:02 {inode}       {description}\n"
        )
        with (process / "mem").open("wb") as target:
            target.seek(BASE)
            target.write(b"" if memory is None else memory.ljust(SIZE, b"\0"))
        raw = raw_stack(ProcessKey(PID, 0), native=(BASE + return_offset,), python_state=0)
        return Symbolizer(tmp_path).resolve(raw).frames

    return run


def _native(name: str, module: str, offset: int) -> Frame:
    return Frame(FrameKind.NATIVE, name, "", "", 0, module, "", offset)


def test_the_vdso_has_names(resolve: Any, return_offset: int) -> None:
    """Its image is read from memory, since there is no file."""
    (frame,) = resolve("[vdso]")
    assert (frame.name, frame.module, frame.address) == ("caller", "[vdso]", return_offset - 1)


def test_a_vdso_that_is_no_elf_image_has_an_offset(resolve: Any, image: bytes) -> None:
    """Nothing is raised about it."""
    (frame,) = resolve("[vdso]", memory=b"\0" * 64 + image[64:])
    assert frame.name.startswith("[vdso]+0x")


def test_uprobe_slots_cut(resolve: Any) -> None:
    """A return address replaced by a return probe says nothing about the caller."""
    assert resolve("[uprobes]") == (CUT,)


@pytest.mark.parametrize("name", ["", "[anon:jit]", "[heap]"])
def test_code_without_a_file_is_anonymous(resolve: Any, return_offset: int, name: str) -> None:
    """Named or not: run-time compiled code has no module."""
    (frame,) = resolve(name)
    assert frame == _native(f"[anonymous code]+{return_offset - 1:#x}", "", return_offset - 1)


def test_a_mapped_file_that_is_not_elf_has_an_offset(resolve: Any, return_offset: int) -> None:
    """Code images of other run-times."""
    (frame,) = resolve("/file", b"not ELF" * 1000)
    assert frame == _native(f"file+{return_offset - 1:#x}", "/file", return_offset - 1)


@pytest.mark.parametrize("path", ["/gone", "/memfd:library"])
def test_a_deleted_file_is_read_through_map_files(resolve: Any, image: bytes, path: str) -> None:
    """Replaced by an upgrade, or never in a file system."""
    (frame,) = resolve(f"{path} (deleted)", image, deleted=True)
    assert (frame.name, frame.module) == ("caller", path)


def test_code_of_a_process_without_memory_is_read_from_its_file(resolve: Any, image: bytes) -> None:
    """The call instruction is in the file as well."""
    (frame,) = resolve("/file", image, memory=None)
    assert frame.name == "caller"


def test_a_file_replaced_under_its_name_is_not_taken_for_the_mapped_one(
    resolve: Any, image: bytes
) -> None:
    """The name now leads to another inode: the mapping itself is asked."""
    (frame,) = resolve("/file", image, deleted=True, imposter=b"not ELF")
    assert (frame.name, frame.module) == ("caller", "/file")


def test_mappings_of_the_next_program_are_not_taken_for_those_of_the_last(
    resolve: Any, image: bytes, return_offset: int, tmp_path: Path
) -> None:
    """After exec the pid shows new mappings, but stacks on their way are of the old program."""
    resolve("/file", image)
    process = tmp_path / str(PID)
    view = ProcessView(ProcessKey(PID, 0), tmp_path, ElfFiles(), Demangler())
    view.update()
    (process / "mem").write_bytes(b"")
    (process / "maps").write_text(f"{BASE:x}-{BASE + SIZE:x} r-xp 0 0:0 0 [uprobes]\n")
    view.refresh()
    view.update()
    stack = view.native_stack((BASE + return_offset,))
    assert [each.frame.name for each in stack.frames] == ["caller"]


def test_a_call_to_nowhere_is_no_call(resolve: Any, image: bytes, return_offset: int) -> None:
    """A direct call must lead into code: bytes that look like a call are common in data."""
    damaged = bytearray(image)
    damaged[return_offset - 4 : return_offset] = (0x7FFFFF00).to_bytes(4, "little")
    assert resolve("", memory=bytes(damaged)) == (CUT,)


def test_the_leaf_of_a_sample_needs_no_call_before_it(
    resolve: Any, image: bytes, return_offset: int, tmp_path: Path
) -> None:
    """It is where the thread was, even at a function's first instruction; the frames above it are return addresses."""
    resolve("/file", image)
    functions = ElfFile(MemoryBytes(image)).functions
    first = next(at for at in range(0x100, len(image)) if functions.name_at(at) == "callee")
    view = ProcessView(ProcessKey(PID, 0), tmp_path, ElfFiles(), Demangler())
    view.update()
    addresses = (BASE + first, BASE + return_offset)
    sampled = view.native_stack(addresses, leaf_is_instruction=True)
    assert [each.frame.name for each in sampled.frames] == ["callee", "caller"]
    assert sampled.frames[0].frame.address == first
    # Known as a leaf, it is still no return address.
    called = view.native_stack(addresses)
    assert (called.frames, called.cut) == ((), True)
    again = view.native_stack(addresses, leaf_is_instruction=True)
    assert again == sampled
