"""The constant offset of the thread context pointer, for every way a linker can place it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.symbolize.elf import (
    PF_X,
    PT_LOAD,
    PT_TLS,
    ElfHeaders,
    MemoryBytes,
    read_headers,
)
from otel_gpuflame.symbolize.elf_files import ElfFile, ElfFiles, FileIdentity
from otel_gpuflame.symbolize.maps import Mapping
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.thread_context import ThreadContextPlace, find_thread_context

PROC = Path("/proc")

LIBRARY = """
__attribute__((visibility(VISIBILITY))) __thread void *otel_thread_ctx_v1;
static __thread char padding[PADDING];
char *place(void) {
    padding[PADDING / 2] += 1;
    return (char *)&otel_thread_ctx_v1;
}
"""
# Prints the offset in the main thread, and in another one, and the main thread's pointer, then waits.
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
char *(*place_fn)(void);
static void *say(void *unused) {
    printf("%ld ", (long)(place_fn() - (char *)__builtin_thread_pointer()));
    return unused;
}
char *place(void);
int main(int argc, char **argv) {
    pthread_t thread;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    place_fn = library ? (char *(*)(void))dlsym(library, "place") : LINKED;
    if (!place_fn) {
        fprintf(stderr, "%s", dlerror());
        return 1;
    }
    say(NULL);
    pthread_create(&thread, NULL, say, NULL);
    pthread_join(thread, NULL);
    printf("%lu\\n", (unsigned long)__builtin_thread_pointer());
    fflush(stdout);
    return getchar() == 0;
}
"""
SHARED = ("-shared", "-fPIC")
DESCRIPTOR = ("-mtls-dialect=gnu2",)
INITIAL = ("-ftls-model=initial-exec",)
GENERAL = ("-mtls-dialect=gnu", "-ftls-model=global-dynamic")


def block_of(pid: int, thread_pointer: int, module: int) -> int:
    """A thread's block of dynamic TLS, as glibc keeps it on x86-64."""
    memory = ProcessMemory(pid, PROC)
    vector = memory.u64(thread_pointer + 8)
    assert vector is not None
    count, block = memory.u64(vector - 16), memory.u64(vector + 16 * module)
    memory.close()
    assert count is not None
    assert block is not None
    assert count >= module
    return block


@pytest.fixture
def offsets(
    build: Callable[..., Path], start: Callable[..., Any]
) -> Callable[..., tuple[ThreadContextPlace | None, list[int]]]:
    """What is found, and what the two threads of a program say, for a library built with options.

    Where the place is in a module, that it leads to what the main thread says is looked at here, while it lives.
    """

    def run(
        *options: str, opened: bool, visibility: str = "default", padding: int = 64
    ) -> tuple[ThreadContextPlace | None, list[int]]:
        definitions = (f'-DVISIBILITY="{visibility}"', f"-DPADDING={padding}")
        library = build("libcontext.so", LIBRARY, *SHARED, *definitions, *options)
        if opened:
            command = [build("program", PROGRAM, "-DLINKED=NULL", "-ldl", "-pthread"), library]
        else:
            command = [build("program", PROGRAM, "-DLINKED=place", str(library), "-pthread")]
        with start(command) as (child, output):
            *said, pointer = (int(word) for word in output.readline().split())
            found = find_thread_context(child.pid, PROC)
            if found is not None and found.module:
                assert (
                    block_of(child.pid, pointer, found.module) + found.offset - pointer == said[0]
                )
            return found, said

    return run


@pytest.mark.parametrize("opened", [False, True], ids=["linked", "dlopen"])
@pytest.mark.parametrize("visibility", ["default", "protected"])
@pytest.mark.parametrize("model", [INITIAL, DESCRIPTOR], ids=["initial-exec", "descriptor"])
def test_a_library_is_found_through_its_got(
    offsets: Callable[..., Any], model: tuple[str, ...], visibility: str, opened: bool
) -> None:
    """TPOFF64 and TLSDESC, the symbol named by index (default) or by place (protected)."""
    found, said = offsets(*model, opened=opened, visibility=visibility)
    assert said[0] == said[1] < 0
    assert found == (said[0], 0)


def test_a_library_bound_to_itself_is_found_by_place(offsets: Callable[..., Any]) -> None:
    """With -Bsymbolic the relocation has no symbol, only an addend."""
    found, said = offsets(*DESCRIPTOR, "-Wl,-Bsymbolic", opened=False)
    assert found == (said[0], 0)


@pytest.mark.parametrize("visibility", ["default", "protected"])
@pytest.mark.parametrize("model", [DESCRIPTOR, GENERAL], ids=["descriptor", "general dynamic"])
def test_dynamic_tls_is_found_by_the_number_of_its_module(
    offsets: Callable[..., Any], model: tuple[str, ...], visibility: str
) -> None:
    """A library that was opened, and is too large for static TLS, has a block elsewhere in each thread."""
    found, said = offsets(*model, opened=True, visibility=visibility, padding=1 << 20)
    assert said[0] != said[1]
    assert found is not None
    assert found.module > 0


def test_a_linked_library_of_the_general_model_is_found_by_its_module(
    offsets: Callable[..., Any],
) -> None:
    """Its block is static, and in the thread's vector all the same; no word of the GOT says the distance."""
    found, said = offsets(*GENERAL, opened=False)
    assert said[0] == said[1]
    assert found is not None
    assert found.module > 0


@pytest.mark.parametrize("kind", [("-pie", "-fPIE"), ("-no-pie",)], ids=["pie", "fixed"])
@pytest.mark.parametrize("align", [8, 64])
def test_the_main_program_is_found_by_its_headers(
    build: Callable[..., Path], start: Callable[..., Any], kind: tuple[str, ...], align: int
) -> None:
    """An exported symbol of the program itself has no GOT entry that matters."""
    source = f"static __thread int aligned __attribute__((aligned({align}))) = 1;\n"
    source += LIBRARY.replace("padding[PADDING / 2] += 1", "padding[1] += aligned")
    options = ('-DVISIBILITY="default"', "-DPADDING=40", "-DLINKED=place", "-rdynamic", "-pthread")
    program = build("program", source + PROGRAM, *options, *kind)
    with start([program]) as (child, output):
        *said, _pointer = (int(word) for word in output.readline().split())
        assert said[0] == said[1]
        assert find_thread_context(child.pid, PROC) == (said[0], 0)


def test_a_program_whose_tls_size_is_not_rounded(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    """Some linkers leave the size of the TLS segment as it is: the C library rounds it up."""
    options = ('-DVISIBILITY="default"', "-DPADDING=40", "-DLINKED=place", "-rdynamic", "-pthread")
    source = LIBRARY + PROGRAM + "static __thread char last[64] __attribute__((aligned(64)));\n"
    source += "char *use(void) { return last; }\n"
    data = bytearray(build("program", source, *options, "-no-pie").read_bytes())
    headers = read_headers(MemoryBytes(bytes(data)))
    offset = _place_from(tmp_path / "rounded", bytes(data), headers)
    at = 64 + 56 * next(i for i, each in enumerate(headers.segments) if each.type == PT_TLS)
    size = int.from_bytes(data[at + 40 : at + 48], "little")
    data[at + 40 : at + 48] = (size - 8).to_bytes(8, "little")
    assert offset is not None
    assert offset.offset < 0
    assert _place_from(tmp_path / "unrounded", bytes(data), headers) == offset


def _place_from(proc: Path, program: bytes, headers: ElfHeaders) -> ThreadContextPlace | None:
    """What is found in a fake process that has mapped the program's code."""
    (proc / "7" / "root").mkdir(parents=True)
    path = proc / "7" / "root" / "program"
    path.write_bytes(program)
    code = next(each for each in headers.segments if each.type == PT_LOAD and each.flags & PF_X)
    line = f"400000-500000 r-xp {code.offset:08x} 08:02 {path.stat().st_ino} /program\n"
    (proc / "7" / "maps").write_text(line)
    return find_thread_context(7, proc)


def test_a_process_without_publisher_has_none(
    build: Callable[..., Path], start: Callable[..., Any]
) -> None:
    """No symbol, no offset."""
    source = '#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); return getchar(); }'
    program = build("program", source)
    with start([program]) as (child, output):
        output.readline()
        assert find_thread_context(child.pid, PROC) is None


def test_files_without_the_symbol_are_not_opened_again(
    build: Callable[..., Path], start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that maps a library more has only that one searched."""
    source = '#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); return getchar(); }'
    opened: list[str] = []
    open_file = ElfFiles.open

    def note(files: ElfFiles, pid: int, mapping: Mapping, proc: Path) -> ElfFile | None:
        opened.append(mapping.path)
        return open_file(files, pid, mapping, proc)

    monkeypatch.setattr(ElfFiles, "open", note)
    without: set[FileIdentity] = set()
    with start([build("program", source)]) as (child, output):
        output.readline()
        for _ in range(2):
            assert find_thread_context(child.pid, PROC, ElfFiles(), without) is None
        assert len(opened) == len(without) > 1
        one_more = without.pop()
        assert find_thread_context(child.pid, PROC, ElfFiles(), without) is None
        assert opened[-1] == one_more[2]


def test_a_process_that_is_gone_has_none() -> None:
    """No process, no offset, no exception."""
    assert find_thread_context(1 << 30, PROC) is None
