# SPDX-License-Identifier: Apache-2.0
"""Stacks of programs whose frames, files and unwind tables are wrong, and of those that end meanwhile: marked, never
invented.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest
from elftools.elf.elffile import ELFFile

from otel_gpuflame.events.frames import Frame, FrameKind, StackKey
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_WAIT
from tests.integration.bpf.recording import Recording, app
from tests.integration.bpf.session import attach_and_record, record_in_step
from tests.interpreters import SUPPORTED, interpreter

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

PROGRAMS: Final = Path(__file__).parent / "programs"
MAX_PYTHON_FRAMES: Final = 128
LAUNCHING: Final = {
    *("<module>", "run", "main", "child", "launch_for_ever", "launch_below", "FakeCuda.launch"),
    *("FakeCuda.call", "FakeCuda.result", "FakeCuda.function", "FakeCuda._out", "_handle"),
    *("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run"),
}
WORK: Final = """
int cuCtxSynchronize(void);
__attribute__((noinline)) int NAME(int depth, long a, long b)
{
	int result = depth ? NAME(depth - 1, b * 3, a + depth) : cuCtxSynchronize();
	__asm__ volatile("" : : "r"(a), "r"(b) : "rbx", "r12", "r13", "memory");
	return result;
}
int work(int depth)
{
	int result = NAME(depth, depth, 2);
	__asm__ volatile("");
	return result;
}
"""


def build_work(path: Path, name: str, fakes: Path, *options: str) -> Path:
    """A library whose `work` waits for the GPU in a function of that name."""
    command = ["cc", "-shared", "-fPIC", f"-DNAME={name}", *options, "-o", str(path)]
    driver = ["-x", "none", f"-L{fakes}", "-l:libcuda.so.1"]
    subprocess.run([*command, "-x", "c", "-", *driver], input=WORK.encode(), check=True)
    return path


def launches(recording: Recording) -> dict[int, tuple[Frame, ...]]:
    """Frames of each launch, by the first dimension of its grid."""
    stacks = recording.capture.stacks
    return {
        int(row["grid"][0]): stacks[StackKey(*row["stack_hash"].tolist())].frames
        for row in recording.capture.kind(Kind.LAUNCH)
    }


def names(frames: tuple[Frame, ...], kind: FrameKind) -> list[str]:
    """Names of the frames of one kind, leaf first."""
    return [frame.name for frame in reversed(frames) if frame.kind is kind]


@pytest.mark.parametrize("options", [(), ("--unwind",)], ids=["plain", "unwind"])
@pytest.mark.parametrize("version", SUPPORTED)
def test_a_bent_chain_of_frames_ends_and_says_so(
    version: str, options: tuple[str, ...], output: Path, environment: dict[str, str]
) -> None:
    """In circles up to the limit, into unmapped memory up to there; the frames next to the launch are right."""
    command = app("bent_frames", python=interpreter(version, "bpf"))
    recording = attach_and_record(output, command, environment, "--no-cpu", *options)
    assert recording.truth["version"].startswith(f"{version}.")
    whole, circle, itself, wild = (launches(recording)[number] for number in (1, 2, 3, 4))
    assert names(whole, FrameKind.PYTHON) == ["inner", "middle", "outer", "main", "<module>"]
    assert not [mark for mark in names(whole, FrameKind.MARK) if "Python" in mark]
    turns = ["inner", *["middle", "outer"] * MAX_PYTHON_FRAMES]
    assert names(circle, FrameKind.PYTHON) == turns[:MAX_PYTHON_FRAMES]
    still = ["inner", "middle", *["outer"] * MAX_PYTHON_FRAMES]
    assert names(itself, FrameKind.PYTHON) == still[:MAX_PYTHON_FRAMES]
    for frames in (circle, itself):
        assert frames[0].name == "[Python stack truncated]"
    assert names(wild, FrameKind.PYTHON) == ["inner", "middle", "outer"]
    assert wild[0].name == "[Python stack cut]"


def test_processes_that_are_killed_in_the_middle_have_their_frames_or_marks(
    output: Path, environment: dict[str, str]
) -> None:
    """Twelve children with three threads each: nothing is invented, the books are complete, recording goes on."""
    command = app("killed_launches", "--hold")
    recording = record_in_step(output, *command, environment=environment, options=["--no-cpu"])
    assert recording.exit_code == 0, recording.stderr
    truth, capture = recording.truth, recording.capture
    rows = capture.kind(Kind.LAUNCH)
    assert len(set(rows["tgid"].tolist())) == truth["children"] + 1
    assert capture.pending() == {}
    for stack in capture.stacks.values():
        python = set(names(stack.frames, FrameKind.PYTHON))
        assert python <= LAUNCHING, python - LAUNCHING
    own = {StackKey(*key) for key in rows["stack_hash"][rows["tgid"] == truth["pid"]].tolist()}
    (last,) = [capture.stacks[key].frames for key in own]
    below = ["launch_below"] * 4
    assert names(last, FrameKind.PYTHON)[-7:] == [*below, "main", "run", "<module>"]


@pytest.mark.parametrize("options", [(), ("--unwind",)], ids=["plain", "unwind"])
def test_a_library_that_is_replaced_while_mapped_keeps_its_names(
    options: tuple[str, ...], output: Path, environment: dict[str, str], fakes: Path, tmp_path: Path
) -> None:
    """By its old names where it was mapped before, by its new ones where it was mapped after that."""
    pointers = ("-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
    old = build_work(tmp_path / "libwork.so", "before_it", fakes, *pointers)
    new = build_work(tmp_path / "libnew.so", "after_it", fakes, *pointers)
    command = app("work_libraries", old, "--replace-by", new, "--hold")
    recording = attach_and_record(output, command, environment, "--no-cpu", *options)
    found = {}
    for sample in recording.samples(GPU_WAIT):
        python = {name for name, _ in sample.python()}
        (where,) = python & {"first", "mapped_before", "mapped_after"}
        native = [f.name for f in sample.frames if f.kind is FrameKind.NATIVE]
        found[where] = [name for name in native if name.endswith("_it")]
    before, after = ["before_it"] * 8, ["after_it"] * 8
    assert found == {"first": before, "mapped_before": before, "mapped_after": after}


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_eh_frame_cuts_the_stack_and_no_more(
    seed: int, output: Path, environment: dict[str, str], fakes: Path, tmp_path: Path
) -> None:
    """The frame that is exact without it is there, so are all of Python, and what follows is code or a mark."""
    options = ("-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls")
    library = build_work(tmp_path / "libwork.so", "before_it", fakes, *options)
    image = bytearray(library.read_bytes())
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".eh_frame")
        begin, size = section["sh_offset"], section["sh_size"]
    noise = random.Random(seed)
    if seed:
        for _ in range(size // 4):
            image[begin + noise.randrange(size)] = noise.randrange(256)
    else:
        image[begin : begin + size] = b"\xff" * size
    library.write_bytes(image)
    command = app("work_libraries", library, "--hold")
    recording = attach_and_record(output, command, environment, "--no-cpu", "--unwind")
    (sample,) = recording.samples(GPU_WAIT)
    assert [name for name, _ in sample.python()] == ["<module>", "run", "main", "first", "wait_in"]
    native = [frame for frame in sample.frames if frame.kind is FrameKind.NATIVE]
    assert [f.name for f in native if f.module == str(library)][-1] == "before_it"
    assert all(frame.module for frame in native)
    assert {f.name for f in native if f.module == str(library)} <= {"before_it", "work"}


@pytest.mark.parametrize("options", [(), ("--unwind",)], ids=["plain", "unwind"])
def test_exceptions_below_a_return_probe_are_caught_as_ever(
    options: tuple[str, ...], output: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """A wait has our return probe, and C++ throws and catches in what it calls: waits and program are whole."""
    library, log = tmp_path / "libthrows.so", tmp_path / "caught"
    command = ["g++", "-shared", "-fPIC", "-O1", "-o", str(library)]
    subprocess.run([*command, str(PROGRAMS / "throws_below.cpp")], check=True)
    settings = {"LD_PRELOAD": str(library), "THROWS_BELOW_LOG": str(log)}
    recording = attach_and_record(
        output, app("plain_wait"), {**environment, **settings}, "--no-cpu", *options
    )
    assert int(log.read_text()) >= 3
    assert len(recording.capture.kind(Kind.WAIT)) == 3
    stacks = {tuple(map(tuple, stack)) for stack in recording.truth["stacks"]}
    assert {tuple(sample.python()) for sample in recording.samples(GPU_WAIT)} == stacks
