"""A process whose files, mappings and memory hold anything: stacks are resolved or marked, never raised about."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.symbolize.cpython.detect import find_python
from otel_gpuflame.symbolize.elf import MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.symbolizer import Symbolizer
from otel_gpuflame.symbolize.thread_context import find_thread_context

PID = 4711
BASE = 0x10000
SIZE = 0x8000
SOURCE = """
unsigned long _PyRuntime[512] = {1};
unsigned long PyCode_Type[4] = {2};
const unsigned int Py_Version = VERSION;
__thread void *otel_thread_ctx_v1;
void **place(void) { return &otel_thread_ctx_v1; }
"""
VERSIONS = {10: 0, 11: 0x030B07F0, 12: 0x030C01F0, 13: 0x030D00F0}


@pytest.fixture(scope="module")
def libraries(build: Callable[..., Path]) -> dict[int, bytes]:
    """Libraries that look like interpreters, by minor version."""
    options = ("-shared", "-fPIC", "-mtls-dialect=gnu2", "-s", "-Wl,-z,noseparate-code")
    return {
        minor: build("libpython.so", SOURCE.replace("VERSION", str(number)), *options).read_bytes()
        for minor, number in VERSIONS.items()
    }


class FakeProc:
    """A /proc with one process, made of files."""

    def __init__(self, folder: Path, libraries: dict[int, bytes]) -> None:
        self.root = folder
        self.libraries = libraries
        self.process = folder / str(PID)
        (self.process / "root" / "lib").mkdir(parents=True)
        (self.process / "stat").write_text(f"{PID} (x) S " + " ".join(["0"] * 40))

    def fill(self, minor: int, noise: random.Random) -> None:
        """A damaged library, mapped at `BASE`, and memory that repeats it with noise and loops."""
        library = self.libraries[minor]
        name = f"libpython3.{minor}.so"
        path = self.process / "root" / "lib" / name
        path.unlink(missing_ok=True)
        damaged = bytearray(library)
        for _ in range(noise.randrange(6)):
            damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        path.write_bytes(damaged)
        inode = noise.choice([path.stat().st_ino, 1])
        (self.process / "maps").write_text(
            f"{BASE:x}-{BASE + SIZE:x} r-xp 00000000 08:02 {inode} /lib/{name}\n"
            f"{2 * BASE:x}-{3 * BASE:x} r-xp 00000000 00:00 0\n"
        )
        memory = bytearray(library[: 2 * SIZE].ljust(2 * SIZE, b"\0"))
        code_type = ElfFile(MemoryBytes(library)).dynamic_symbol("PyCode_Type")
        assert code_type is not None
        density = noise.choice([0.0, 0.02, 0.4])
        # The second half is where the Python objects are: all noise, with words that look like code objects.
        for at in range(0, len(memory) - 8, 8):
            if at >= SIZE or noise.random() < density:
                inside = BASE + noise.randrange(2 * SIZE)
                near = BASE + SIZE + 8 * noise.randrange(SIZE // 8)
                words = [
                    0,
                    3,
                    0xA4,
                    inside,
                    near,
                    near,
                    BASE + code_type.value,
                    noise.getrandbits(64),
                ]
                memory[at : at + 8] = noise.choice(words).to_bytes(8, "little")
        with (self.process / "mem").open("wb") as file:
            os.pwrite(file.fileno(), memory, BASE)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory, libraries: dict[int, bytes]) -> FakeProc:
    """One fake /proc, filled anew for each example."""
    return FakeProc(tmp_path_factory.mktemp("proc"), libraries)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1 << 32), minor=st.sampled_from(sorted(VERSIONS)))
def test_any_process_is_resolved(fake: FakeProc, raw_stack: Any, seed: int, minor: int) -> None:
    """Detection, thread context and symbolisation end, and every frame has a name that can be written."""
    noise = random.Random(seed)
    fake.fill(minor, noise)
    find_python(PID, fake.root)
    find_thread_context(PID, fake.root)
    addresses = [BASE + noise.randrange(2 * SIZE) for _ in range(30)]
    addresses += [BASE + SIZE + 8 * noise.randrange(SIZE // 8) for _ in range(60)]
    addresses += [noise.getrandbits(64) for _ in range(5)]
    noise.shuffle(addresses)
    stack = Symbolizer(fake.root).resolve(
        raw_stack(
            ProcessKey(PID, 0),
            python=tuple(zip(addresses, reversed(addresses), strict=True)),
            native=tuple(addresses),
            python_state=noise.randrange(8),
            native_state=noise.randrange(5),
        )
    )
    for frame in stack.frames:
        assert frame.name
        (frame.name + frame.file + frame.module + frame.build_id).encode()


@settings(max_examples=100, deadline=None)
@given(
    python=st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))),
    native=st.lists(st.integers(0, (1 << 64) - 1)),
)
def test_any_stack_of_a_live_process_is_resolved(
    symbolizer: Symbolizer, python: list[tuple[int, int]], native: list[int]
) -> None:
    """Every Python frame stays as a mark; every native address that is nowhere cuts."""
    raw = RawStack(StackKey(1, 2), ProcessKey(os.getpid(), 0), tuple(python), tuple(native), 1, 0)
    stack = symbolizer.resolve(raw)
    assert len(stack.frames) >= len(python)


@pytest.fixture(scope="module")
def symbolizer() -> Symbolizer:
    """For this process."""
    return Symbolizer()
