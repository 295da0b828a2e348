"""Interpreters, a program that knows its own stacks, and a frame walker like the one in BPF."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.raw import RawStack
from tests.interpreters import SUPPORTED, interpreter

PROC = Path("/proc")
_HERE = Path(__file__).parent
_MAX_WALK = 512
_REFERENCE_TAG = 7
"""OGF_REFERENCE_TAG: from 3.14 on a frame's reference to its code object is tagged."""


@dataclass(frozen=True)
class TruthProgram:
    """A running `truth_program.py`: its process and what it says about its own threads."""

    process: ProcessKey
    version: tuple[int, ...]
    threads: dict[str, dict[str, Any]]


@contextmanager
def running(command: list[str | Path]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A child that lives until its standard input is closed; gives it and its output."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child, child.stdout
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


@pytest.fixture(scope="session")
def start() -> Callable[[list[str | Path]], Any]:
    """Starts a child as a context manager; see `running`."""
    return running


@pytest.fixture(scope="module", params=SUPPORTED)
def truth(request: pytest.FixtureRequest) -> Iterator[TruthProgram]:
    """The truth program under each supported version of the interpreter that can be had."""
    python = interpreter(request.param, "python")
    with running([python, _HERE / "truth_program.py"]) as (child, output):
        said = json.loads(output.readline())
        yield TruthProgram(ProcessKey(child.pid, 0), tuple(said["version"]), said["threads"])


@pytest.fixture(scope="session")
def walk() -> Callable[[ProcessMemory, PythonRuntime, int], list[tuple[int, int]]]:
    """(code, instruction) of a thread, leaf first, read as BPF reads it: from `struct
    ogf_python_layout` alone.
    """
    return _walk


def _walk(memory: ProcessMemory, runtime: PythonRuntime, thread_id: int) -> list[tuple[int, int]]:
    layout = runtime.layout

    def u64(address: int) -> int:
        value = memory.u64(address)
        assert value is not None
        return value

    thread = u64(u64(layout.interpreters_head) + layout.interpreter_threads_head)
    while u64(thread + layout.thread_id) != thread_id:
        thread = u64(thread + layout.thread_next)
    frame = u64(thread + layout.thread_frame)
    if layout.has_cframe:
        frame = u64(frame + layout.cframe_frame)
    found: list[tuple[int, int]] = []
    while frame and len(found) < _MAX_WALK:
        owner = memory.read(frame + layout.frame_owner, 1)
        assert owner is not None
        instruction = u64(frame + layout.frame_instruction)
        if layout.instruction_is_index:
            instruction &= 0xFFFFFFFF
        if layout.skip_owner == 255 or owner[0] < layout.skip_owner:
            found.append((u64(frame + layout.frame_code) & ~_REFERENCE_TAG, instruction))
        frame = u64(frame + layout.frame_previous)
    return found


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles C text with the given options into a file of the given name, in a folder of its own."""

    def compile_c(name: str, source: str, *options: str) -> Path:
        folder = tmp_path_factory.mktemp("built")
        text = folder / "source.c"
        text.write_text(source)
        subprocess.run(["cc", "-O1", "-g0", "-o", folder / name, text, *options], check=True)
        return folder / name

    return compile_c


@pytest.fixture
def raw_stack() -> Callable[..., RawStack]:
    """A `RawStack` with the fields given and plain values for the rest."""

    def make(process: ProcessKey, **fields: Any) -> RawStack:
        values: dict[str, Any] = {
            "key": StackKey(1, 2),
            "process": process,
            "python": (),
            "native": (),
            "python_state": PythonState.OK,
            "native_state": NativeState.END,
        }
        return RawStack(**{**values, **fields})

    return make
