# SPDX-License-Identifier: Apache-2.0
"""Native stacks of code without frame pointers: frame by frame what the C library's unwinder says, up to the root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.wire import NativeState
from otel_gpuflame.symbolize.raw import RawStack
from tests.integration.bpf.session import Running, running
from tests.integration.bpf.unwinding import RawCapture, compile_program, raw_capture

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

WHOLE_CASES = ("busy", "any_size", "aligned", "sorted", "handler", "other_stack", "thread")
MAX_FRAMES = 128


def answer(target: Running, capture: RawCapture, heard: int) -> tuple[list[int], RawStack]:
    """Have the program wait once more: the return addresses that it knows of, and the stack that BPF took."""
    target.go()
    truth = target.truth(heard)
    (raw,) = capture.stacks()
    return truth["frames"], raw


@pytest.mark.parametrize(
    "options", [(), ("-O0", "-fno-omit-frame-pointer")], ids=["without", "with"]
)
def test_agrees_with_the_c_librarys_unwinder(
    tmp_path: Path, fakes: Path, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """Whatever registers a function uses, however its stack is aligned, through libc, signal handlers and threads."""
    program = compile_program(tmp_path, fakes, *options)
    with running([str(program)], environment) as target:
        assert target.truth()["ready"]
        with raw_capture(target.process.pid) as capture:
            _, first = answer(target, capture, 1)
            capture.feed(first.process)
            mappings = capture.mappings()
            for heard, case in enumerate(WHOLE_CASES, 2):
                truth, raw = answer(target, capture, heard)
                # The two calls are in one function, but not at one place.
                assert raw.native[1:] == tuple(truth[1:]), case
                assert raw.native_state == NativeState.ROOT, case
                assert not raw.lacks_table
                assert all(mappings.find(address - 1) for address in raw.native)
                assert bool(raw.instructions) == (case in ("handler", "other_stack"))
            truth, deep = answer(target, capture, len(WHOLE_CASES) + 2)
            assert deep.native_state == NativeState.TRUNCATED
            assert deep.native[1:] == tuple(truth[1:MAX_FRAMES])
        assert target.finish() == 0


@contextmanager
def captured(
    directory: Path, fakes: Path, environment: dict[str, str]
) -> Iterator[tuple[Running, RawCapture, RawStack]]:
    """The program, probed, with its first stack, which BPF has taken without tables."""
    program = compile_program(directory, fakes)
    with running([str(program)], environment) as target:
        assert target.truth()["ready"]
        with raw_capture(target.process.pid) as capture:
            yield target, capture, answer(target, capture, 1)[1]
        for _ in range(len(WHOLE_CASES)):
            target.go()
        assert target.finish() == 0


def waits_as_before(target: Running, capture: RawCapture) -> bool:
    """Whether the next stack is the first one once more: what is cut behind one frame is the same from anywhere."""
    target.go()
    target.truth(2)
    return capture.stacks() == []


def test_without_tables_the_walk_is_cut_and_says_that_one_is_missing(
    tmp_path: Path, fakes: Path, environment: dict[str, str]
) -> None:
    """The first frame is exact; what would follow by a register that holds anything is not shown."""
    with captured(tmp_path, fakes, environment) as (target, capture, first):
        assert first.native_state == NativeState.CUT
        assert first.lacks_table
        assert len(first.native) == 1
        assert waits_as_before(target, capture)


def test_a_reused_pid_does_not_get_the_tables_of_the_process_before(
    tmp_path: Path, fakes: Path, environment: dict[str, str]
) -> None:
    """Mappings are of a process with a start, and no other."""
    with captured(tmp_path, fakes, environment) as (target, capture, first):
        capture.feed(ProcessKey(first.process.tgid, first.process.start_ns + 1))
        assert capture.tables.files.bytes > 0
        assert waits_as_before(target, capture)


def test_tables_are_freed_with_their_last_user(
    tmp_path: Path, fakes: Path, environment: dict[str, str]
) -> None:
    """Mappings go with the process, and tables when nobody has used them for a while."""
    with captured(tmp_path, fakes, environment) as (target, capture, first):
        capture.feed(first.process)
        assert capture.tables.files.bytes > 0
        capture.tables.forget(first.process, now_ns=0)
        assert waits_as_before(target, capture)
        capture.tables.files.free_unused(now_ns=1 << 62)
        assert capture.tables.files.bytes == 0
