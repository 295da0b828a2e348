"""GPU libraries: which files they are, and where in them probes go. Libraries are compiled here."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from otel_gpuflame.capture import libraries
from otel_gpuflame.capture.bpf.probes import ProbeGroup, Program, spec_for_symbol
from otel_gpuflame.capture.libraries import (
    file_offset_of,
    installed_libraries,
    is_gpu_library,
    read_library,
)
from otel_gpuflame.symbolize.elf import SHT_DYNSYM
from otel_gpuflame.symbolize.elf_symbols import STT_FUNC, SYMBOL
from tests.tiers import require
from tests.unit.symbolize.elf_image import elf_image

ENDBR64 = bytes.fromhex("f30f1efa")
# Assembly, so that the first bytes of each function are known.
SOURCE = r"""
#define FUNCTION(name, code) __asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n" code "\nret\n" \
	".size " #name ", .-" #name "\n")
FUNCTION(cuLaunchKernel, "endbr64\npush %rbp\npop %rbp");
FUNCTION(cuLaunchKernelEx, "endbr64\npush %r15\npop %r15");
FUNCTION(cuGraphLaunch, "endbr64\nxor %eax, %eax");
FUNCTION(cuMemcpyHtoD_v2, "push %rbx\npop %rbx");
FUNCTION(cuStreamSynchronize_ptsz, "endbr64\nnop");
FUNCTION(cuModuleGetFunction, "endbr64\nnopl 0(%rax)");
FUNCTION(cuEventQuery, "nop");
FUNCTION(cuInit, "nop");
__asm__(".globl cuLaunchKernel_ptsz\n.type cuLaunchKernel_ptsz, @function\n.set cuLaunchKernel_ptsz, cuLaunchKernel\n");
int cuCtxSynchronize;
extern int cuMemFree_v2(void);
int calls_another(void) { return cuMemFree_v2(); }
"""
# symbol -> bytes that the probe moves past
PAST = {
    "cuLaunchKernel": 4,
    "cuLaunchKernelEx": 4,
    "cuGraphLaunch": 0,
    "cuMemcpyHtoD_v2": 0,
    "cuStreamSynchronize_ptsz": 4,
    "cuModuleGetFunction": 4,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small library with the names of a real one."""
    compiler = shutil.which("cc")
    require(
        "bpf", compiler is not None and os.uname().machine == "x86_64", "cc on x86-64 is needed"
    )
    directory = tmp_path_factory.mktemp("library")
    source, path = directory / "cuda.c", directory / "libcuda.so.1"
    source.write_text(SOURCE)
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def offset_in_file(path: Path, symbol: str) -> int:
    """Where a function lies in its file, found by its section instead of its segment."""
    with path.open("rb") as file:
        sections: Any = ELFFile(file)
        (entry,) = sections.get_section_by_name(".dynsym").get_symbol_by_name(symbol)
        text = sections.get_section_by_name(".text")
        return int(entry["st_value"] - text["sh_addr"] + text["sh_offset"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15", True),
        ("/usr/lib/libcuda.so", True),
        ("/usr/lib/libcuda.so.1 (deleted)", True),
        ("/usr/lib/x86_64-linux-gnu/libOpenCL.so.1", True),
        ("/venv/pyopencl.libs/libOpenCL-5519dec5.so.1.0.0", True),
        ("/usr/local/cuda/lib64/libcudart.so.13", False),
        ("/usr/lib/libcudadebugger.so.1", False),
        ("/usr/lib/libcuda.so.1.bak", False),
        ("/usr/lib/mylibcuda.so.1", False),
        ("/usr/lib/libcuda.so.1/other.so", False),
        ("/usr/lib/libOpenCL-UPPER.so.1", False),
        ("", False),
        ("[heap]", False),
    ],
)
def test_gpu_libraries_are_known_by_file_name(path: str, expected: bool) -> None:
    """Driver libraries and OpenCL loaders, versioned or bundled with a wheel, and nothing like them."""
    assert is_gpu_library(path) is expected


def test_every_known_export_gets_its_probes(library: Path) -> None:
    """Each known function has all its programs at its place; others, and imports and data, have none."""
    found = read_library(library)
    assert found is not None
    expected = set()
    for symbol, past in PAST.items():
        spec = spec_for_symbol(symbol)
        assert spec is not None
        offset = offset_in_file(library, symbol) + past
        expected |= {(program, offset, spec.cookie) for program in spec.programs}
    assert {(p.program, p.offset, p.cookie) for p in found.points} == expected
    assert len(found.points) == len(expected)


def test_launches_of_graphs_are_probed_always_as_long_as_they_are_rare(library: Path) -> None:
    """By a group of their own: they come and go with windows where a program makes many."""
    found = read_library(library)
    assert found is not None
    (point,) = [point for point in found.points if point.group is ProbeGroup.GRAPH]
    assert point.offset == offset_in_file(library, "cuGraphLaunch")
    assert not point.windowed


def test_the_probe_sits_on_a_cheap_instruction(library: Path) -> None:
    """Past endbr64 only where a push or a nop follows, since only these are cheaper."""
    data = library.read_bytes()
    for symbol, past in PAST.items():
        start = offset_in_file(library, symbol)
        assert data[start:].startswith(ENDBR64) == (symbol != "cuMemcpyHtoD_v2")
        assert past in (0, 4)


def test_aliases_share_their_probe(library: Path) -> None:
    """Two names of one function are one place: two probes there would count each call twice."""
    found = read_library(library)
    assert found is not None
    offset = offset_in_file(library, "cuLaunchKernel_ptsz") + 4
    assert [p.program for p in found.points if p.offset == offset] == [Program.CALL]


def test_offset_of_a_function(library: Path) -> None:
    """An exported function is found, one that is not exported is not."""
    assert file_offset_of(library, "cuInit") == offset_in_file(library, "cuInit")
    assert file_offset_of(library, "cuNone") is None


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"not a library", b"\x7fELF\x02\x01\x01" + bytes(200)]
)
def test_files_that_are_no_libraries_are_none(tmp_path: Path, content: bytes) -> None:
    """A file with the right name and wrong content is left alone."""
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(content)
    assert read_library(path) is None


def test_files_that_cannot_be_read_are_not_taken_for_others(tmp_path: Path) -> None:
    """What they hold is not known: they may be read another time. A directory holds nothing."""
    with pytest.raises(FileNotFoundError):
        read_library(tmp_path / "libcuda.so.1")
    assert read_library(tmp_path) is None


def test_a_library_without_known_functions_is_none(tmp_path: Path) -> None:
    """There is nothing to probe in it."""
    compiler = shutil.which("cc")
    require("bpf", compiler is not None, "cc is needed")
    path = tmp_path / "libcuda.so.1"
    command = [str(compiler), "-shared", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=b"int cuEventQuery(void) { return 0; }", check=True)
    assert read_library(path) is None


def test_damaged_libraries_never_raise(library: Path, tmp_path: Path) -> None:
    """A target may map any file under this name: 400 damaged copies give points inside them, or none."""
    data = library.read_bytes()
    with library.open("rb") as file:
        elf: Any = ELFFile(file)
        sections = (elf["e_shoff"], elf["e_shoff"] + elf["e_shentsize"] * elf["e_shnum"])
        segments = (elf["e_phoff"], elf["e_phoff"] + elf["e_phentsize"] * elf["e_phnum"])
        symbols = elf.get_section_by_name(".dynsym")
        table = (symbols["sh_offset"], symbols["sh_offset"] + symbols["sh_size"])
    choose = random.Random(20)
    path = tmp_path / "libcuda.so.1"
    for number in range(400):
        low, high = ((0, 64), sections, segments, table)[number % 4]
        damaged = bytearray(data)
        for _ in range(choose.randrange(1, 10)):
            damaged[choose.randrange(low, high)] = choose.choice((0, 255, choose.randrange(256)))
        if number % 5 == 0:
            del damaged[choose.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        found = read_library(path)
        assert found is None or found.points


def test_libraries_of_the_search_path_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_LIBRARY_PATH goes before the loader's cache; files are named once, and must exist."""
    cached, own = tmp_path / "cached" / "libOpenCL.so.1", tmp_path / "own" / "libcuda.so.1"
    for path in (cached, own):
        path.parent.mkdir()
        path.touch()
    lines = [str(cached), str(own), str(tmp_path / "gone" / "libcuda.so.1"), "/lib/libc.so.6"]
    monkeypatch.setattr(libraries, "_loader_cache", lambda: lines)
    search_path = f":{own.parent}:{tmp_path / 'none'}:{own.parent}"
    assert installed_libraries({"LD_LIBRARY_PATH": search_path}) == [own, cached]
    assert installed_libraries({}) == [cached, own]


def test_the_loaders_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `ldconfig -p` with an arrow name a file; a host without ldconfig has none."""
    output = "2 libs found\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n"

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if command[0] == "/sbin/ldconfig":
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, stdout=output)

    monkeypatch.setattr(subprocess, "run", answer)
    assert libraries._loader_cache() == ["/lib/libcuda.so.1"]

    def missing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(subprocess, "run", missing)
    assert libraries._loader_cache() == []


@pytest.mark.parametrize("name", [b"cuLaunchKernel\0", b"x" * (1 << 22)], ids=["ours", "endless"])
def test_a_library_made_to_keep_its_reader_busy_is_read_in_bounds(
    name: bytes, tmp_path: Path
) -> None:
    """A million functions, each at an address of its own: all of a name that we probe, or of one without an end."""
    rows = np.zeros(1 << 20, SYMBOL)
    rows["info"], rows["section"], rows["name"] = STT_FUNC, 1, 1
    rows["value"] = np.arange(len(rows))
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(elf_image(b"\0" + name, (SHT_DYNSYM, rows.tobytes())))
    begin_s = time.process_time()
    found = read_library(path)
    assert time.process_time() - begin_s < 2
    assert (0 if found is None else len(found.points)) <= 1024
