# SPDX-License-Identifier: Apache-2.0
"""Native walks that are remembered: what is not walked again is what walking would find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf.kernel import WALK_MEMORY
from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.events.wire import NativeState
from tests.fakes.build import FAKES
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import app
from tests.integration.bpf.session import Running, attach_and_record_until, running
from tests.integration.bpf.unwinding import (
    PROGRAMS,
    WITHOUT_FRAME_POINTERS,
    RawCapture,
    raw_capture,
)

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

WAYS = 800
SEEDS = (1, 20_000, 300_000)
DEPTHS = 40


def walks(capture: RawCapture) -> dict[str, int]:
    """What has become of walks with tables so far."""
    counts = capture.kernel.counters()
    return {each.outcome: each.count for each in counts if each.kind == "walk"}


@contextmanager
def walker(
    directory: Path, fakes: Path, environment: dict[str, str], *options: str
) -> Iterator[Running]:
    """`many_walks.cc` on the fake driver."""
    program = directory / "many_walks"
    subprocess.run(
        [
            *("c++", "-std=c++17", "-pthread", "-fno-ipa-icf", *options),
            *(f"-I{FAKES / 'cuda'}", "-o", str(program), str(PROGRAMS / "many_walks.cc")),
            *(f"-L{fakes}", "-l:libcuda.so.1"),
        ],
        check=True,
    )
    with running([str(program)], environment) as target:
        assert target.truth()["ready"]
        yield target


def take_ways(target: Running, heard: int, seed: int, ways: int) -> int:
    """Have the program take ways and answer; how often it has waited."""
    assert target.process.stdin is not None
    target.process.stdin.write(f"{seed} {ways}\n")
    target.process.stdin.flush()
    return int(target.truth(heard)["waits"])


@pytest.mark.parametrize(
    "options",
    [WITHOUT_FRAME_POINTERS, ("-O2", "-fno-omit-frame-pointer"), ("-O0",)],
    ids=["without", "with", "unoptimized"],
)
def test_memory_is_what_walking_finds(
    tmp_path: Path,
    fakes: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """Each remembered stack is walked all the same, and compared: recursion, tail calls, exceptions, coroutines …"""
    monkeypatch.setenv(WALK_MEMORY, "check")
    with (
        walker(tmp_path, fakes, environment, *options) as target,
        raw_capture(target.process.pid) as capture,
    ):
        waits = take_ways(target, 1, 7, 1)
        capture.feed(capture.stacks()[0].process)
        for heard, seed in enumerate(SEEDS, 2):
            waits += take_ways(target, heard, seed, WAYS)
            capture.stacks()
        found = walks(capture)
        assert "wrong" not in found, found
        # Tables came after the first way; nothing else is left out of the counters.
        assert waits - 400 <= sum(found.values()) <= waits
        assert found["remembered"] > found["new"]
        # The same place on the stack is reached by several ways, and signal handlers are walked each time.
        assert found["changed"] > 0
        assert found["not_lasting"] > 0


def test_samples_and_off_cpu_stacks_are_remembered_alike(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted anywhere, also in the middle of pushes, in NumPy, OpenBLAS, libc and CPython."""
    monkeypatch.setenv(WALK_MEMORY, "check")
    with running(app("numpy_work"), environment) as target:
        assert target.truth()["ready"]
        with raw_capture(target.process.pid, (Feature.CALLS, Feature.CPU)) as capture:
            target.wait_for(lambda: bool(feed_first(capture)), "a stack")
            target.wait_for(lambda: walks(capture).get("remembered", 0) > DEPTHS, "old stacks")
            found = walks(capture)
            assert "wrong" not in found, found
        target.process.kill()


def feed_first(capture: RawCapture) -> bool:
    """Give BPF the tables of whatever process has sent a stack; whether one has."""
    raws = capture.stacks()
    if raws:
        capture.feed(raws[0].process)
    return bool(raws)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="each Python call is one of C in 3.10")
def test_new_python_frames_above_remembered_native_ones(environment: dict[str, str]) -> None:
    """A stack that differs in its Python frames only is sent with all native ones, which were not walked."""
    stays = {**environment, STAYS: "1"}
    with running(app("many_stacks", str(DEPTHS), "--again", "--hold"), stays) as target:
        assert target.truth()["ready"]
        with raw_capture(target.process.pid) as capture:
            target.go()
            target.truth(1)
            first = capture.stacks()
            assert len(first) == DEPTHS
            capture.feed(first[0].process)
            for step in range(DEPTHS):
                target.go()
                target.truth(2 + step)
            raws = capture.stacks()
            assert len({raw.python for raw in raws}) == len(raws) == DEPTHS
            assert {raw.native_state for raw in raws} == {NativeState.ROOT}
            assert walks(capture)["remembered"] >= DEPTHS - 8
            # Few native stacks, and none of them a mixture.
            natives = {raw.native for raw in raws}
            assert len(natives) <= 4
            mappings = capture.mappings()
            assert all(mappings.find(address - 1) for each in natives for address in each)
        target.process.kill()


@pytest.mark.parametrize(
    "arguments", [("autograd", "--hold"), ("served_requests", "--hold")], ids=lambda a: a[0]
)
def test_whole_recordings_with_a_check(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    """Backward passes in threads without Python frames of their own; coroutines. Samples, waits, driver calls too."""
    monkeypatch.setenv(WALK_MEMORY, "check")
    # Tables come while the program is at work, which may be over by then.
    recording = attach_and_record_until(
        lambda capture: capture.count("walk", "remembered") > 0,
        *(tmp_path / "checked.ogfcap", app(*arguments), environment, "--unwind"),
    )
    assert recording.capture.count("walk", "wrong") == 0


def test_nothing_is_remembered_without_tables(
    tmp_path: Path, fakes: Path, environment: dict[str, str]
) -> None:
    """Walks by frame pointers are short, and what they depend on is not all on the stack."""
    with (
        walker(tmp_path, fakes, environment, *WITHOUT_FRAME_POINTERS) as target,
        raw_capture(target.process.pid) as capture,
    ):
        assert take_ways(target, 1, 7, 1) > 0
        assert walks(capture) == {}


def test_other_mappings_are_another_walk(
    tmp_path: Path, fakes: Path, environment: dict[str, str]
) -> None:
    """What was remembered under mappings is not taken when others have been published, even equal ones."""
    with (
        walker(tmp_path, fakes, environment, *WITHOUT_FRAME_POINTERS) as target,
        raw_capture(target.process.pid) as capture,
    ):
        take_ways(target, 1, 7, 1)
        process = capture.stacks()[0].process
        capture.feed(process)
        take_ways(target, 2, 11, 1)
        take_ways(target, 3, 11, 1)
        before = walks(capture)
        take_ways(target, 4, 11, 1)
        known = walks(capture)
        assert known["remembered"] > before["remembered"]
        assert known["new"] == before["new"]
        capture.tables.changed(process, 0)
        take_ways(target, 5, 11, 1)
        assert walks(capture)["new"] > known["new"]
