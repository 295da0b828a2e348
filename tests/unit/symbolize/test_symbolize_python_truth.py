"""Every frame of every thread of a live interpreter: name, file and line equal what the program
says itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime, find_python
from otel_gpuflame.symbolize.memory import ProcessMemory
from otel_gpuflame.symbolize.symbolizer import Symbolizer

PROC = Path("/proc")
MAX_NAME = 4096


@pytest.fixture(scope="module")
def runtime(truth: Any) -> PythonRuntime:
    """The interpreter of the truth program."""
    found = find_python(truth.process.tgid, PROC)
    assert isinstance(found, PythonRuntime)
    return found


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"


def test_the_version_is_that_of_the_running_interpreter(truth: Any, runtime: PythonRuntime) -> None:
    """Major and minor always, the patch level where the interpreter publishes it (3.11 on)."""
    shown = 3 if truth.version >= (3, 11) else 2
    assert runtime.version[:shown] == truth.version[:shown]


def test_code_addresses_and_instructions_are_those_of_the_program(
    truth: Any, runtime: PythonRuntime, walk: Callable[..., Any]
) -> None:
    """The layout leads to the code objects that the program names, in its order and at its
    instruction.
    """
    memory = ProcessMemory(truth.process.tgid, PROC)
    for name, thread in truth.threads.items():
        walked = walk(memory, runtime, thread["id"])
        assert [code for code, _ in walked] == [frame[0] for frame in thread["frames"]], name
        base = runtime.code.code_instructions
        offsets = [
            2 * where if runtime.layout.instruction_is_index else where - code - base
            for code, where in walked
        ]
        assert offsets == [frame[1] for frame in thread["frames"]], name


def test_names_files_and_lines_are_those_of_the_program(
    truth: Any, runtime: PythonRuntime, walk: Callable[..., Any], raw_stack: Callable[..., Any]
) -> None:
    """Through the whole symbolizer, root first, for all kinds of calls and for the main thread."""
    memory = ProcessMemory(truth.process.tgid, PROC)
    symbolizer = Symbolizer(PROC)
    assert len(truth.threads) > 25
    for name, thread in truth.threads.items():
        walked = tuple(walk(memory, runtime, thread["id"]))
        stack = symbolizer.resolve(raw_stack(truth.process, python=walked))
        assert [(frame.name, frame.file, frame.line) for frame in stack.frames] == [
            (_shortened(qualified), _printable(file), line)
            for _, _, qualified, file, line in reversed(thread["frames"])
        ], name
        assert {frame.kind for frame in stack.frames} == {FrameKind.PYTHON}
    assert symbolizer.counters()["python_frames_unreadable"] == 0
