# SPDX-License-Identifier: Apache-2.0
"""Tables that are made while a program runs: after some first stacks all others are whole, Python frames in between."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf.decode import decode_stack
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.events.frames import Frame, FrameKind, Stack
from otel_gpuflame.events.records import Stacks
from otel_gpuflame.events.wire import NativeState
from otel_gpuflame.symbolize.maps import read_maps
from otel_gpuflame.symbolize.raw import RawStack
from tests.fakes.steps import STAYS
from tests.integration.bpf.described_code import DescribedProcess
from tests.integration.bpf.recording import app
from tests.integration.bpf.session import running
from tests.integration.bpf.unwinding import WITHOUT_FRAME_POINTERS

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

WHOLE = ["<module>", "run", "main", "begin", "call_back", "begin.<locals>.<lambda>", "called_back"]
SAMPLES = 300
CALLING_LIBRARY = """
__attribute__((noinline)) long deeper(void (*function)(void), long a, long b, long c, long d)
{
	long result;
	if (!a) { function(); return b; }
	result = deeper(function, a - 1, b + c, c * 3, d ^ b);
	return result + a * b + c * d;
}
long call_back(void (*function)(void), long depth)
{
	return deeper(function, depth, 1, 2, 3) + 1;
}
"""


def build_library(directory: Path) -> Path:
    """A library that calls back, through 40 functions without frame pointers."""
    path = directory / "libcallback.so"
    command = ["cc", "-shared", "-fPIC", *WITHOUT_FRAME_POINTERS, "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=CALLING_LIBRARY.encode(), check=True)
    return path


def ours(frames: Sequence[Frame]) -> list[str]:
    """Without ctypes and libffi, which are in between too."""
    return [frame.name for frame in frames if frame.name in WHOLE]


@pytest.mark.parametrize("options", [(), ("--fork",)], ids=["dlopen", "fork"])
def test_stacks_become_whole(
    tmp_path: Path, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """Of a library that was loaded later, and of a child: Python, C, Python, and C up to the driver call."""
    library = build_library(tmp_path)
    stays = {**environment, STAYS: "1"}
    with running(app("python_between", library, *options, "--hold"), stays) as target:
        assert target.truth()["ready"]
        with LiveCapture(LiveOptions(pids=(target.process.pid,), unwind=True)) as live:
            found: list[Stack] = []
            rounds = count(1)

            def is_whole() -> bool:
                """Asked after one more wait of the program, however many it takes until tables are there."""
                target.go()
                target.truth(next(rounds))
                events = live.step(0)
                found.extend(s for e in events if isinstance(e, Stacks) for s in e.stacks)
                return bool(found) and ours(found[-1].frames) == WHOLE

            target.wait_for(is_whole, "a whole stack")
            whole = found[-1].frames
            assert [f.name for f in whole].count("deeper") == 41
            assert not [f for f in whole if f.kind is FrameKind.MARK]
            kinds = {f.name: f.kind for f in whole}
            assert kinds["called_back"] is FrameKind.PYTHON
            assert kinds["call_back"] is FrameKind.NATIVE
        target.process.kill()


def test_without_it_stacks_are_as_before(tmp_path: Path, environment: dict[str, str]) -> None:
    """By default: Python frames first, then what frame pointers can tell."""
    library = build_library(tmp_path)
    stays = {**environment, STAYS: "1"}
    with running(app("python_between", library, "--hold"), stays) as target:
        assert target.truth()["ready"]
        with LiveCapture(LiveOptions(pids=(target.process.pid,), unwind=False)) as live:
            found: list[Stack] = []
            for heard in range(1, 20):
                target.go()
                target.truth(heard)
                events = live.step(0)
                found += [s for e in events if isinstance(e, Stacks) for s in e.stacks]
        target.process.kill()
    assert found
    assert all("call_back" not in ours(stack.frames) for stack in found)


def collect(live: LiveCapture, until: Callable[[list[RawStack]], bool]) -> list[RawStack]:
    """Raw stacks as they come, until there are enough."""
    raws: list[RawStack] = []
    new_stack = live._stacks._new

    def remember(record: bytes) -> RawStack | None:
        raw = decode_stack(record)
        if raw is not None:
            raws.append(raw)
        return new_stack(record)

    live._stacks._new = remember  # type: ignore[method-assign]
    while not until(raws):
        live.step(50_000_000)
    return raws


def test_samples_of_code_without_frame_pointers_reach_the_root(environment: dict[str, str]) -> None:
    """NumPy, OpenBLAS, libc and CPython, once tables are there: all but those in hand-written code without CFI.

    OpenBLAS has some, for which the file says so: 1 or 2 % of the samples of this program on processors of Intel, a
    third on those of AMD, for which products of matrices are written by hand too. Elsewhere a stack may be cut where
    a page cannot be read at that moment.
    """
    with running(app("numpy_work"), environment) as target:
        assert target.truth()["ready"]
        with LiveCapture(LiveOptions(pids=(target.process.pid,), cpu=True, unwind=True)) as live:
            raws = collect(live, lambda raws: len(_after_tables(raws)) >= SAMPLES)
            mappings = read_maps(target.process.pid, Path("/proc"))
        target.process.kill()
    assert mappings is not None
    described = DescribedProcess(mappings)
    # The leaf is an instruction, what is above it the one behind a call.
    fair = [
        raw
        for raw in _after_tables(raws)
        if described.has(raw.native[-1] - (len(raw.native) > 1))
        or raw.native_state == NativeState.ROOT
    ]
    cut = [mappings.find(raw.native[-1]) for raw in fair if raw.native_state != NativeState.ROOT]
    assert len(fair) > SAMPLES // 2
    assert len(cut) <= 0.01 * len(fair), cut


def _after_tables(raws: list[RawStack]) -> list[RawStack]:
    """Stacks behind the last one that lacked a table."""
    lacking = [position for position, raw in enumerate(raws) if raw.lacks_table]
    return raws[lacking[-1] + 1 :] if lacking else raws
