"""Which interpreter runs in a process, from its first instruction on."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.symbolize.cpython.detect import PythonRefusal, PythonRuntime, find_python
from otel_gpuflame.symbolize.cpython.layouts import (
    DEBUG_OFFSETS_BYTES,
    layout_of,
    parse_debug_offsets,
)
from otel_gpuflame.symbolize.cpython.regenerate import offsets_of
from otel_gpuflame.symbolize.cpython.tables import OFFSETS
from otel_gpuflame.symbolize.memory import ProcessMemory
from tests.interpreters import interpreter

PROC = Path("/proc")

FAKE = """
#include <stdio.h>
unsigned long _PyRuntime[2048] = {RUNTIME};
#ifdef VERSION
const unsigned int Py_Version = VERSION;
#endif
int main(void) { puts(""); fflush(stdout); return getchar(); }
"""


@pytest.fixture
def find(build: Callable[..., Path], start: Callable[..., Any]) -> Callable[..., Any]:
    """What is found in a running program that looks like an interpreter."""

    def run(name: str, *options: str, runtime: str = "0") -> Any:
        program = build(name, FAKE.replace("RUNTIME", runtime), "-rdynamic", *options)
        with start([program]) as (child, output):
            output.readline()
            return find_python(child.pid, PROC)

    return run


@pytest.mark.parametrize("version", ["2.7", "3.6m", "3.9", "3.15", "3.16"])
def test_other_versions_are_refused_by_name(find: Callable[..., Any], version: str) -> None:
    """The reason names the version and those that are supported."""
    number = version.rstrip("m")
    refusal = PythonRefusal(f"CPython {number} is not supported: 3.10 to 3.14 are")
    assert find(f"python{version}") == refusal


@pytest.mark.parametrize(("version", "number"), [("3.9", 0x030912F0), ("3.15", 0x030F00F0)])
def test_other_versions_are_refused_by_what_they_say(
    find: Callable[..., Any], version: str, number: int
) -> None:
    """A program that embeds an interpreter has another name."""
    refusal = PythonRefusal(f"CPython {version} is not supported: 3.10 to 3.14 are")
    assert find("embedder", f"-DVERSION={number}") == refusal


def test_a_free_threaded_build_is_refused_by_name(find: Callable[..., Any]) -> None:
    """Its objects have other headers."""
    found = find("python3.13t", f"-DVERSION={0x030D00F0}")
    assert isinstance(found, PythonRefusal)
    assert "free-threaded build of CPython 3.13" in found.reason


def test_a_free_threaded_build_is_refused_by_its_flag(find: Callable[..., Any]) -> None:
    """The name may have been changed; `_Py_DebugOffsets` says it."""
    cookie = int.from_bytes(b"xdebugpy", "little")
    found = find("embedder", f"-DVERSION={0x030D00F0}", runtime=f"{cookie}, 0x030d00f0, 1")
    assert isinstance(found, PythonRefusal)
    assert "free-threaded" in found.reason


def test_a_pre_release_is_refused(find: Callable[..., Any]) -> None:
    """Structures still move before the release candidates."""
    found = find("embedder", f"-DVERSION={0x030D00A3}")
    assert isinstance(found, PythonRefusal)
    assert "pre-release of CPython 3.13" in found.reason


def test_an_interpreter_without_version_is_refused(find: Callable[..., Any]) -> None:
    """3.10 and older do not say their version, and the name of an embedder tells nothing."""
    found = find("embedder")
    assert isinstance(found, PythonRefusal)
    assert "does not say its version" in found.reason


def test_threads_in_another_place_are_refused(find: Callable[..., Any]) -> None:
    """A build whose list of threads is not where its version has it must not be walked."""
    # A list that goes round in circles; the id of its member is no thread's.
    words = ["(unsigned long)_PyRuntime + 64"] * 600
    words[8] = "(unsigned long)_PyRuntime + 128"
    nonsense = ", ".join(words)
    found = find("python3.11", f"-DVERSION={0x030B07F0}", runtime=nonsense)
    assert isinstance(found, PythonRefusal)
    assert "keeps its threads elsewhere" in found.reason


def test_an_interpreter_that_has_not_started_has_a_layout(find: Callable[..., Any]) -> None:
    """Without any thread yet, the layout and the address that BPF reads later are there."""
    found = find("embedder", f"-DVERSION={0x030B07F0}")
    assert isinstance(found, PythonRuntime)
    assert found.version == (3, 11, 7)
    layout = layout_of((3, 11))
    assert layout is not None
    assert found.layout.interpreters_head % 4096
    assert found.layout.thread_frame == layout.python.thread_frame


def test_a_real_interpreter_is_found_from_its_first_instructions_on() -> None:
    """Asked over and over while it starts: None until it is mapped, then always the same runtime."""
    found: list[PythonRuntime | PythonRefusal] = []
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not _is_waiting_for_input(child.pid):
            runtime = find_python(child.pid, PROC)
            if runtime is not None and _runs(child.pid, sys.executable):
                found.append(runtime)
        final = find_python(child.pid, PROC)
        child.communicate(b"\n")
    assert isinstance(final, PythonRuntime)
    assert set(map(type, found)) <= {PythonRuntime}
    layouts = {each.layout for each in found if isinstance(each, PythonRuntime)}
    assert layouts <= {final.layout}


def _is_waiting_for_input(pid: int) -> bool:
    return (PROC / str(pid) / "syscall").read_text().split()[1:2] == ["0x0"]


def _runs(pid: int, program: str) -> bool:
    return Path(os.readlink(PROC / str(pid) / "exe")) == Path(program).resolve()


def test_a_process_without_interpreter_has_none(build: Callable[..., Path], start: Any) -> None:
    """A plain program is no refusal."""
    source = '#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); return getchar(); }'
    with start([build("plain", source)]) as (child, output):
        output.readline()
        assert find_python(child.pid, PROC) is None


def test_a_process_that_is_gone_has_none() -> None:
    """No exception."""
    assert find_python(1 << 30, PROC) is None


def test_a_stopped_process_is_read_all_the_same(start: Callable[..., Any]) -> None:
    """Reading needs nothing from the target, not even that it runs."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with start(command) as (child, output):
        output.readline()
        child.send_signal(signal.SIGSTOP)
        try:
            assert isinstance(find_python(child.pid, PROC), PythonRuntime)
        finally:
            child.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("minor", sorted(minor for _, minor in OFFSETS))
def test_the_table_is_what_the_headers_say(minor: int) -> None:
    """Compiled anew with the headers of an installed interpreter."""
    python = interpreter(f"3.{minor}", "python")
    if not _has_headers(python):
        pytest.skip(f"no headers of CPython 3.{minor} here")
    offsets = offsets_of(str(python))
    assert (offsets.pop("major"), offsets.pop("minor")) == (3, minor)
    assert offsets == OFFSETS[3, minor]


def _has_headers(python: Path) -> bool:
    ask = "import sysconfig; print(sysconfig.get_path('include'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip(), "Python.h").exists()


def debug_offsets(version: int, *, free_threaded: int = 0, offset: int = 7) -> bytes:
    """A structure with the same number in all fields."""
    words = [version, free_threaded, *[offset] * (DEBUG_OFFSETS_BYTES // 8 - 3)]
    return b"xdebugpy" + struct.pack(f"<{len(words)}Q", *words)


@pytest.mark.parametrize("version", [0x030D00F0, 0x030E0AF0])
def test_debug_offsets_are_checked_before_use(version: int) -> None:
    """No cookie, too short, an unknown version, or offsets beyond any structure: the table is used instead."""
    good = debug_offsets(version)
    assert parse_debug_offsets(good) is not None
    assert parse_debug_offsets(None) is None
    assert parse_debug_offsets(good[:-1]) is None
    assert parse_debug_offsets(b"X" + good[1:]) is None
    assert parse_debug_offsets(debug_offsets(version, offset=1 << 16)) is None
    assert parse_debug_offsets(debug_offsets(version + (2 << 16))) is None


@pytest.mark.parametrize("minor", [13, 14])
def test_what_an_interpreter_publishes_is_what_its_headers_say(minor: int, start: Any) -> None:
    """The words that are read are the right ones: on a release they say what the table of that version says."""
    with start([interpreter(f"3.{minor}", "python"), "-c", "print(flush=True); input()"]) as (
        child,
        output,
    ):
        output.readline()
        found = find_python(child.pid, PROC)
        assert isinstance(found, PythonRuntime)
        head = found.layout.interpreters_head - OFFSETS[3, minor]["runtime_interpreters_head"]
        memory = ProcessMemory(child.pid, PROC)
        published = parse_debug_offsets(memory.read(head, DEBUG_OFFSETS_BYTES))
        memory.close()
    assert published is not None
    assert not published.free_threaded
    expected = layout_of((3, minor))
    assert expected is not None
    assert published.apply(expected) == expected
