"""What happens to resolved stacks when processes start, change and end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.events.frames import ProcessKey, StackKey, mark
from otel_gpuflame.events.wire import PythonState
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime, find_python
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.maps import read_maps
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.start_time import is_same_process
from otel_gpuflame.symbolize.symbolizer import Symbolizer

PROC = Path("/proc")
UNREADABLE = mark("Python frame unreadable")
CUT = mark("native stack cut")

# Says its stack, waits, becomes another program, says its stack again, waits.
PYTHON = """
import os, sys
def first(): pass
print(id(first.__code__), flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, '-c', '''
import sys
def second(): pass
print(id(second.__code__), flush=True)
sys.stdin.readline()
'''])
"""


class Conversation:
    """A child that says something and waits for a line."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.process = ProcessKey(child.pid, 0)

    def hear(self) -> bytes:
        assert self.child.stdout is not None
        return self.child.stdout.readline()

    def answer(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(b"\n")
        self.child.stdin.flush()


@pytest.fixture
def talk(start: Callable[..., Any]) -> Iterator[Callable[..., Conversation]]:
    """Starts children that live until the test is over."""
    open_children: list[Any] = []

    def run(command: list[str | Path]) -> Conversation:
        context = start(command)
        open_children.append(context)
        child, _ = context.__enter__()
        return Conversation(child)

    yield run
    for context in open_children:
        context.__exit__(None, None, None)


def _first_instruction(process: ProcessKey, code: int) -> tuple[int, int]:
    runtime = find_python(process.tgid, PROC)
    assert isinstance(runtime, PythonRuntime)
    if runtime.layout.instruction_is_index:
        return code, 0
    return code, code + runtime.code.code_instructions


def test_exec_is_followed(talk: Any, raw_stack: Any) -> None:
    """After `refresh` the new program is read, and nothing of the old one is answered."""
    python = talk([sys.executable, "-c", PYTHON])
    symbolizer = Symbolizer(PROC)
    first = _first_instruction(python.process, int(python.hear()))
    before = symbolizer.resolve(raw_stack(python.process, python=(first,)))
    python.answer()
    second = _first_instruction(python.process, int(python.hear()))
    symbolizer.refresh(python.process)
    after = symbolizer.resolve(raw_stack(python.process, python=(second,)))
    assert [frame.name for frame in before.frames] == ["first"]
    assert [frame.name for frame in after.frames] == ["second"]


def test_stacks_from_before_exec_are_not_read_from_the_new_program(
    talk: Any, raw_stack: Any
) -> None:
    """Without `refresh` the memory stays that of the old program, which is gone."""
    python = talk([sys.executable, "-c", PYTHON])
    symbolizer = Symbolizer(PROC)
    first = _first_instruction(python.process, int(python.hear()))
    symbolizer.resolve(raw_stack(python.process, python=(first,)))
    python.answer()
    second = _first_instruction(python.process, int(python.hear()))
    stack = symbolizer.resolve(raw_stack(python.process, python=(first, second)))
    assert stack.frames == (UNREADABLE, UNREADABLE)


def test_a_process_that_has_ended_has_unreadable_frames(talk: Any, raw_stack: Any) -> None:
    """They are counted, and the depth of the stack is kept."""
    python = talk([sys.executable, "-c", PYTHON])
    symbolizer = Symbolizer(PROC)
    first = _first_instruction(python.process, int(python.hear()))
    symbolizer.resolve(raw_stack(python.process, python=(first,)))
    python.child.kill()
    python.child.wait()
    stack = symbolizer.resolve(raw_stack(python.process, python=(first, first)))
    assert stack.frames == (UNREADABLE, UNREADABLE)
    assert symbolizer.counters()["python_frames_unreadable"] == 2
    assert symbolizer.counters()["python_frames"] == 1


def test_a_process_never_seen_alive_is_counted(raw_stack: Any) -> None:
    """Marks only, no exception."""
    symbolizer = Symbolizer(PROC)
    stack = symbolizer.resolve(raw_stack(ProcessKey(1 << 30, 5), python=((1, 2),), native=(3, 4)))
    assert stack.frames == (UNREADABLE, CUT)
    assert symbolizer.counters()["processes_unreadable"] == 1


def test_another_process_with_the_same_pid_is_not_read(talk: Any, raw_stack: Any) -> None:
    """A start time that differs means that the pid has been reused."""
    python = talk([sys.executable, "-c", PYTHON])
    first = _first_instruction(python.process, int(python.hear()))
    other = ProcessKey(python.process.tgid, time.monotonic_ns() - 10**12)
    stack = Symbolizer(PROC).resolve(raw_stack(other, python=(first,)))
    assert stack.frames == (UNREADABLE,)


def test_the_right_start_time_is_accepted(talk: Any) -> None:
    """Start in CLOCK_MONOTONIC against the ticks of /proc/PID/stat."""
    before = time.monotonic_ns()
    child = talk([sys.executable, "-c", "print(flush=True); input()"])
    child.hear()
    started = (before + time.monotonic_ns()) // 2
    tick = 10**9 // os.sysconf("SC_CLK_TCK")
    slack = (time.monotonic_ns() - before) // tick + 1
    near = [ProcessKey(child.process.tgid, started + step * tick) for step in range(-slack, slack)]
    assert any(is_same_process(key, PROC) for key in near)
    assert not is_same_process(ProcessKey(child.process.tgid, before - 10 * 10**9), PROC)
    assert not is_same_process(ProcessKey(child.process.tgid, before + 100 * 10**9), PROC)


OPENER = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library, *step;
    puts(""); fflush(stdout); getchar();
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    step = library ? dlsym(library, "step_return") : 0;
    printf("%lx\\n", step ? *(unsigned long *)step : 0); fflush(stdout);
    return getchar();
}
"""
OPENED = """
unsigned long step_return;
__attribute__((noinline)) static void note(void) {
    step_return = (unsigned long)__builtin_return_address(0);
}
__attribute__((constructor)) void stepping(void) { note(); __asm__ volatile(""); }
"""


def test_a_library_opened_later_is_seen_after_refresh(
    talk: Any, build: Callable[..., Path], raw_stack: Any
) -> None:
    """`refresh` after dlopen makes its functions known, and keeps the process."""
    library = build("libopened.so", OPENED, "-shared", "-fPIC")
    opener = talk([build("opener", OPENER, "-ldl"), library])
    opener.hear()
    symbolizer = Symbolizer(PROC)
    symbolizer.resolve(raw_stack(opener.process, python_state=PythonState.NONE))
    opener.answer()
    address = int(opener.hear(), 16)
    raw = raw_stack(opener.process, native=(address,), python_state=PythonState.NONE)
    symbolizer.resolve(raw)
    symbolizer.refresh(opener.process)
    assert [frame.name for frame in symbolizer.resolve(raw).frames] == ["stepping"]


def test_an_unsupported_interpreter_is_named_in_the_stack(
    talk: Any, build: Callable[..., Path], raw_stack: Any
) -> None:
    """BPF says that it does not walk, the process says why."""
    source = '#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); return getchar(); }'
    old = talk([build("python3.9", source)])
    old.hear()
    stack = Symbolizer(PROC).resolve(raw_stack(old.process, python_state=PythonState.UNSUPPORTED))
    assert [frame.name for frame in stack.frames] == [
        "[no Python frames: CPython 3.9 is not supported: 3.10 to 3.14 are]"
    ]


def test_forgetting_gives_descriptors_back(raw_stack: Any) -> None:
    """A process that has ended costs nothing any more; forgetting twice is harmless."""
    symbolizer = Symbolizer(PROC)
    process = ProcessKey(os.getpid(), 0)
    before = _open_memories()
    symbolizer.resolve(raw_stack(process))
    assert _open_memories() == before + 1
    symbolizer.forget(process)
    symbolizer.forget(process)
    assert _open_memories() == before


def _open_memories() -> int:
    gc.collect()
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    return sum(link.endswith("/mem") for link in links)


def test_memory_reads_are_bounded() -> None:
    """Addresses outside user space and sizes beyond the limit are None, like unmapped memory."""
    memory = ProcessMemory(os.getpid(), PROC)
    here = id(memory)
    assert memory.read(here, 16) is not None
    for address, size in [(0, 1), (-1, 1), (1 << 63, 8), (1 << 64, 8), (here, -1), (here, 1 << 30)]:
        assert memory.read(address, size) is None
    assert memory.u64(8) is None
    assert memory.u32(8) is None
    memory.close()
    assert memory.read(here, 16) is None


def test_stacks_of_calls_come_before_those_of_samples(
    talk: Callable[..., Conversation], raw_stack: Callable[..., Any]
) -> None:
    """A program that ends after its first launch still has that one's frames; samples it has had for long."""
    process = talk([sys.executable, "-c", "print(flush=True); input()"]).process
    raws = [
        raw_stack(process, key=StackKey(number, 0), leaf_is_instruction=number % 2 == 0)
        for number in range(6)
    ]
    stacks = Symbolizer(PROC).resolve_all(raws)
    assert [stack.key.high for stack in stacks] == [1, 3, 5, 0, 2, 4]


def test_all_that_ends_with_the_process_is_read_before_symbols_are_looked_up(
    talk: Callable[..., Conversation],
    raw_stack: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symbol tables take long: the process may be gone by the time that the first one has been read."""
    talking = talk([sys.executable, "-c", PYTHON])
    code = int(talking.hear())
    runtime = find_python(talking.child.pid, PROC)
    assert isinstance(runtime, PythonRuntime)
    instruction = code + runtime.code.code_instructions
    raws = [
        raw_stack(talking.process, key=StackKey(number, 0), python=((code, instruction),))
        for number in range(3)
    ]
    finish = Symbolizer._finish

    def finish_when_it_has_ended(symbolizer: Symbolizer, draft: Any) -> Any:
        talking.child.kill()
        talking.child.wait()
        return finish(symbolizer, draft)

    monkeypatch.setattr(Symbolizer, "_finish", finish_when_it_has_ended)
    stacks = Symbolizer(PROC).resolve_all(raws)
    assert [[frame.name for frame in stack.frames] for stack in stacks] == [["first"]] * 3


def test_files_of_a_process_that_has_ended_are_known_to_whoever_shares_them(
    talk: Callable[..., Conversation], raw_stack: Callable[..., Any]
) -> None:
    """The first stack may be resolved when nothing leads to the files of its process any more."""
    talking = talk([sys.executable, "-c", "print(flush=True); input()"])
    talking.hear()
    files = ElfFiles()
    symbolizer = Symbolizer(PROC, files)
    symbolizer.prepare(talking.process)
    maps = read_maps(talking.child.pid, PROC)
    assert maps is not None
    mapping = next(each for each in maps.mappings if each.path.endswith("/libc.so.6"))
    address = mapping.start + 64
    # Somebody else looks into the file while the process lives.
    assert files.open(talking.child.pid, mapping, PROC) is not None
    talking.child.kill()
    talking.child.wait()
    raw = raw_stack(
        talking.process,
        native=(address,),
        python_state=PythonState.NONE,
        leaf_is_instruction=True,
    )
    (stack,) = symbolizer.resolve_all([raw])
    assert stack.frames[-1].module.endswith("/libc.so.6")
    assert symbolizer.counters()["elf_files_unreadable"] == 0
