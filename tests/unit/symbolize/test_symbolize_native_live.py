"""Native frames of a live process, from code of every kind."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.events.frames import FrameKind, ProcessKey, mark
from otel_gpuflame.events.wire import NativeState, PythonState
from otel_gpuflame.symbolize.symbolizer import Symbolizer

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="deleted files are read through map_files, which needs root"
)

PROC = Path("/proc")
FRAME_POINTERS = ("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
STEP = """
typedef void (*step_fn)(void **steps);
VISIBLE void ogf_step(void **steps) {
    ((step_fn)steps[1])(steps + 1);
    __asm__ volatile("");
}
step_fn ogf_step_entry = ogf_step;
"""


@dataclasses.dataclass(frozen=True)
class Chain:
    """Return addresses of the program, leaf first, and where its libraries are."""

    process: ProcessKey
    addresses: tuple[int, ...]
    libraries: tuple[Path, ...]


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    """The compiled `native_program.c`, with frame pointers."""
    source = (Path(__file__).parent / "native_program.c").read_text()
    return build("native_program", source, *FRAME_POINTERS, "-ldl")


@pytest.fixture(params=[False, True], ids=["without perf map", "with perf map"])
def chain(
    request: pytest.FixtureRequest,
    program: Path,
    build: Callable[..., Path],
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Chain]:
    """The running program."""
    shared = (*FRAME_POINTERS, "-shared", "-fPIC")
    libraries = (
        build("libnamed.so", STEP, *shared, "-DVISIBLE="),
        build(
            "libnameless.so", STEP, *shared, "-DVISIBLE=static", "-Wl,--build-id=0xabcdef12", "-s"
        ),
        build("libdeleted.so", STEP, *shared, "-DVISIBLE="),
    )
    if request.param:
        monkeypatch.setenv("OGF_PERF_MAP", "1")
    with start([program, *libraries]) as (child, output):
        try:
            addresses = tuple(int(word, 16) for word in output.readline().split())
            yield Chain(ProcessKey(child.pid, 0), addresses, libraries)
        finally:
            Path(f"/tmp/perf-{child.pid}.map").unlink(missing_ok=True)


def test_code_of_every_kind_gets_its_name(
    chain: Chain, program: Path, raw_stack: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """Run-time compiled, deleted, nameless and named libraries, and the program with a demangled
    name.
    """
    stack = Symbolizer(PROC).resolve(
        raw_stack(chain.process, native=chain.addresses, python_state=PythonState.NONE)
    )
    names = [frame.name for frame in reversed(stack.frames)]
    compiled = (
        "compiled function" if "with perf map" in request.node.name else "[anonymous code]+0x9"
    )
    assert names[0] == compiled
    assert names[1] == "ogf_step"
    assert names[2].startswith("libnameless.so+0x")
    assert names[3:6] == ["ogf_step", "space::outer(void**)", "main"]
    modules = [frame.module for frame in reversed(stack.frames)][1:6]
    expected = [*map(str, reversed(chain.libraries)), str(program), str(program)]
    assert modules == expected
    nameless, outer = stack.frames[-3], stack.frames[-5]
    assert nameless.build_id == "abcdef12"
    assert nameless.name == f"libnameless.so+{nameless.address:#x}"
    assert outer.system_name == "_ZN5space5outerEPPv"
    assert {frame.kind for frame in stack.frames if frame != mark("native stack cut")} == {
        FrameKind.NATIVE
    }


@pytest.mark.parametrize("bad", [0, 1, 1 << 47, (1 << 64) - 1])
def test_an_implausible_address_cuts_the_rest(
    chain: Chain, raw_stack: Callable[..., Any], bad: int
) -> None:
    """What follows an address outside all code is not shown, and a mark at the root says so."""
    native = (*chain.addresses[:2], bad, *chain.addresses[2:])
    symbolizer = Symbolizer(PROC)
    stack = symbolizer.resolve(
        raw_stack(chain.process, native=native, python_state=PythonState.NONE)
    )
    assert stack.frames[0] == mark("native stack cut")
    assert stack.frames[1].name == "ogf_step"
    assert len(stack.frames) == 3
    assert symbolizer.counters()["native_stacks_cut"] == 1


def test_an_address_inside_code_that_no_call_precedes_cuts(
    chain: Chain, raw_stack: Callable[..., Any]
) -> None:
    """One byte beside a return address is not a return address."""
    native = (chain.addresses[0], chain.addresses[1] - 1)
    stack = Symbolizer(PROC).resolve(raw_stack(chain.process, native=native))
    assert [frame.kind for frame in stack.frames] == [FrameKind.MARK, FrameKind.NATIVE]


def test_a_process_that_has_ended_keeps_its_native_names(
    chain: Chain, raw_stack: Callable[..., Any]
) -> None:
    """Stacks still queued when the process ends are resolved from the files seen before."""
    symbolizer = Symbolizer(PROC)
    symbolizer.resolve(raw_stack(chain.process, native=chain.addresses[:1]))
    os.kill(chain.process.tgid, 9)
    os.waitid(os.P_PID, chain.process.tgid, os.WEXITED | os.WNOWAIT)
    stack = symbolizer.resolve(raw_stack(chain.process, native=chain.addresses[3:6]))
    assert [frame.name for frame in stack.frames] == ["main", "space::outer(void**)", "ogf_step"]


def test_a_truncated_chain_is_marked(chain: Chain, raw_stack: Callable[..., Any]) -> None:
    """BPF's limit shows at the root."""
    stack = Symbolizer(PROC).resolve(
        raw_stack(chain.process, native=chain.addresses[:2], native_state=NativeState.TRUNCATED)
    )
    assert stack.frames[0] == mark("native stack truncated")


def test_files_that_cannot_be_reached_leave_offsets(
    chain: Chain, raw_stack: Callable[..., Any], tmp_path: Path
) -> None:
    """Neither /proc/PID/root nor map_files may be read, as from another user's container: counted, not guessed."""
    process = tmp_path / str(chain.process.tgid)
    process.mkdir()
    for name in ("maps", "mem", "stat"):
        (process / name).symlink_to(PROC / process.name / name)
    (process / "root").symlink_to(tmp_path / "nowhere")
    symbolizer = Symbolizer(tmp_path)
    stack = symbolizer.resolve(raw_stack(chain.process, native=chain.addresses[2:6]))
    program, *_ = (
        Symbolizer(PROC).resolve(raw_stack(chain.process, native=chain.addresses[3:6])).frames
    )
    frames = [frame for frame in stack.frames if frame.module == program.module]
    assert frames
    for frame in frames:
        assert frame.name == f"{Path(program.module).name}+{frame.address:#x}"
        assert (frame.system_name, frame.build_id) == ("", "")
    assert symbolizer.counters()["elf_files_unreadable"] > 0
    assert symbolizer.counters()["native_stacks_cut"] == 0
